"""Linear layers with packed weights: the same numbers, and one-line errors for unsupported operations."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, linear

from vit.layers import packed
from vit.layers.feedforward import ACTIVATIONS, FeedForward, quick_gelu
from vit.layers.packed import PackedLinear, pack_linear_layers, packing_is_faster

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


def layer(bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(19, 13, bias=bias, dtype=dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(19,), (1, 19), (2, 7, 19), (0, 7, 19)])
def test_products_equal_the_layers(bias: bool, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    torch.testing.assert_close(PackedLinear(layer(bias))(x), layer(bias)(x).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_in_bfloat16_it_rounds_once(bias: bool) -> None:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no bfloat16 on this processor")
    half, x = layer(bias, torch.bfloat16), torch.randn(2, 7, 19).bfloat16()
    exact = linear(x.double(), half.weight.double(), half.bias.double() if bias else None)
    assert (PackedLinear(half)(x).double() - exact).abs().max() <= 2**-8 * exact.abs().max()


def test_later_changes_of_the_layer_have_no_effect() -> None:
    source, x = layer(), torch.randn(3, 19)
    packed_model, before = PackedLinear(source), source(x).detach()
    with torch.no_grad():
        source.weight.zero_()
        source.bias.zero_()
    torch.testing.assert_close(packed_model(x), before)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda model: model(torch.randn(3, 19).bfloat16()), "takes torch.float32, not torch.bfloat16"),
        (lambda model: model[1](torch.randn(3, 19, device="meta")), "computes on the CPU, not on meta"),
        (lambda model: model(torch.randn(3, 19, requires_grad=True)), "gives no gradients"),
        (deepcopy, "can be neither copied nor saved"),
        (pickle.dumps, "can be neither copied nor saved"),
        (lambda model: model.state_dict(), "has no state_dict"),
        (lambda model: model.load_state_dict({}, strict=False), "cannot load weights"),
        (lambda model: model.bfloat16(), "stays torch.float32 on the CPU"),
        (lambda model: model.to("meta"), "stays torch.float32 on the CPU"),
        (lambda model: torch.export.export(model, (torch.randn(3, 19),)), "is not exported: export the original model"),
    ],
)
def test_unsupported_operations_are_one_line_errors(attempt: Callable[[nn.Module], Any], message: str) -> None:
    packed_model = nn.Sequential(nn.LayerNorm(19), PackedLinear(layer()))
    with pytest.raises(Exception, match=f"a packed model {message}"):
        attempt(packed_model)


@pytest.mark.parametrize("fuses", [True, False])
def test_the_compiler_sees_one_operator(fuses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "FUSES_GELU", fuses)
    part, x = FeedForward(19, 76, 0.0, 0).eval(), torch.randn(2, 7, 19)
    expected = part(x).detach()
    pack_linear_layers(part)
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()  # it compiles a forward method eight times at most
    compiled = torch.compile(part, backend=backend, fullgraph=True)
    with torch.inference_mode():
        torch.testing.assert_close(part(x), expected)
        torch.testing.assert_close(compiled(x), expected)
    (graph,) = graphs
    assert str(graph.graph).count("torch.ops.vit.inference_product") == 2
    assert "gelu" not in str(graph.graph)


def test_each_layer_is_found_by_its_number_as_long_as_it_lives() -> None:
    first, second = PackedLinear(layer()), PackedLinear(nn.Linear(19, 13))
    x, number = torch.randn(3, 19), first.number
    assert torch.equal(torch.ops.vit.inference_product(x, second.number, 13, torch.float32), second(x))
    assert number in packed._layers
    del first
    assert number not in packed._layers
    with pytest.raises(ValueError, match="a packed model has been deleted"):
        torch.ops.vit.inference_product(x, number, 13, torch.float32)


def test_moving_to_its_own_device_and_type_is_allowed() -> None:
    packed_model = PackedLinear(layer())
    assert packed_model.to("cpu", torch.float32) is packed_model
    assert repr(packed_model) == "PackedLinear(in_features=19, out_features=13, dtype=torch.float32, activation=none)"


def test_a_hooked_layer_is_not_packed() -> None:
    seen: list[nn.Module] = []
    model = nn.Sequential(layer(), nn.Sequential(nn.Linear(13, 5)))
    model[0].register_forward_hook(lambda module, *_: seen.append(module))
    pack_linear_layers(model)
    with torch.no_grad():
        model(torch.randn(2, 19))
    assert [type(model.get_submodule(name)) for name in ("0", "1.0")] == [nn.Linear, PackedLinear]
    assert seen == [model[0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gelu_behind_a_layer_is_packed_with_it(dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no bfloat16 on this processor")
    torch.manual_seed(0)
    part, x = FeedForward(19, 76, 0.0, 0).eval().to(dtype), torch.randn(2, 7, 19).to(dtype)
    expected = part.double()(x.double()).detach()
    part.to(dtype)
    pack_linear_layers(part)
    assert (part.fc1.activation, part.fc2.activation) == ("gelu", "none")
    tolerance = 1e-5 if dtype == torch.float32 else 2**-6
    with torch.no_grad():
        assert (part(x).double() - expected).abs().max() < tolerance * expected.abs().max()


@pytest.mark.parametrize("activation", [quick_gelu, ACTIVATIONS["gelu_tanh"]])
def test_another_activation_is_not_fused(activation: Callable[..., Any]) -> None:
    part = FeedForward(19, 76, 0.0, 0, activation).eval()
    expected = part(torch.ones(1, 19)).detach()
    pack_linear_layers(part)
    assert (part.fc1.activation, part.activation) == ("none", activation)
    torch.testing.assert_close(part(torch.ones(1, 19)), expected)


def test_weights_of_another_class_are_not_packed() -> None:
    class Quantised(nn.Parameter):
        """Its products would be its own."""

    part = FeedForward(19, 76, 0.0, 0).eval().requires_grad_(False)
    for module in (part.fc1, part.fc2):
        module.weight = Quantised(module.weight.data, requires_grad=False)
    pack_linear_layers(part)
    assert (type(part.fc1), type(part.fc2), part.activation) == (nn.Linear, nn.Linear, gelu)


def test_a_hooked_layer_is_not_fused() -> None:
    part = FeedForward(19, 76, 0.0, 0).eval()
    seen: list[Any] = []
    part.fc1.register_forward_hook(lambda *given: seen.append(given[2]))
    pack_linear_layers(part)
    assert (type(part.fc1), part.activation) == (nn.Linear, gelu)
    with torch.no_grad():
        part(torch.ones(1, 19))
    assert seen[0].min() < -0.2  # GELU is never below -0.17


@pytest.mark.parametrize(
    ("dtype", "vendor", "has_bfloat16", "expected"),
    [
        (torch.bfloat16, "GenuineIntel", True, True),
        (torch.bfloat16, "AuthenticAMD", False, False),
        (torch.float32, "AuthenticAMD", False, True),
        (torch.float32, "GenuineIntel", True, True),
        (torch.float32, "GenuineIntel", False, False),
        (torch.float32, "", False, False),
        (torch.float16, "AuthenticAMD", True, False),
        (torch.float64, "AuthenticAMD", True, False),
    ],
)
def test_where_packing_is_faster(
    dtype: torch.dtype, vendor: str, has_bfloat16: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "HAS_BFLOAT16", has_bfloat16)
    monkeypatch.setattr(packed, "processor_vendor", lambda: vendor)
    assert packing_is_faster(dtype) == expected
