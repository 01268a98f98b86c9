"""Linear layers with packed weights: the same numbers, and one line for what they cannot do."""

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
from vit.layers.packed import PackedLinear, pack, packing_pays

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


def layer(bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(19, 13, bias=bias, dtype=dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(19,), (1, 19), (2, 7, 19), (0, 7, 19)])
def test_its_products_are_the_layers(bias: bool, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    torch.testing.assert_close(PackedLinear(layer(bias))(x), layer(bias)(x).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_in_bfloat16_it_rounds_once(bias: bool) -> None:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no bfloat16 on this processor")
    half, x = layer(bias, torch.bfloat16), torch.randn(2, 7, 19).bfloat16()
    exact = linear(x.double(), half.weight.double(), half.bias.double() if bias else None)
    assert (PackedLinear(half)(x).double() - exact).abs().max() <= 2**-8 * exact.abs().max()


def test_later_changes_of_the_layer_do_not_reach_it() -> None:
    source, x = layer(), torch.randn(3, 19)
    twin, before = PackedLinear(source), source(x).detach()
    with torch.no_grad():
        source.weight.zero_()
        source.bias.zero_()
    torch.testing.assert_close(twin(x), before)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda twin: twin(torch.randn(3, 19).bfloat16()), "takes torch.float32, not torch.bfloat16"),
        (lambda twin: twin[1](torch.randn(3, 19, device="meta")), "computes on the CPU, not on meta"),
        (lambda twin: twin(torch.randn(3, 19, requires_grad=True)), "gives no gradients"),
        (deepcopy, "is neither copied nor saved"),
        (pickle.dumps, "is neither copied nor saved"),
        (lambda twin: twin.state_dict(), "has no state_dict"),
        (lambda twin: twin.load_state_dict({}, strict=False), "is not filled with other weights"),
        (lambda twin: twin.bfloat16(), "stays torch.float32 on the CPU"),
        (lambda twin: twin.to("meta"), "stays torch.float32 on the CPU"),
        (lambda twin: torch.compile(twin, backend="eager", fullgraph=True)(torch.randn(3, 19)), "is not compiled"),
    ],
)
def test_what_it_cannot_do_is_said(attempt: Callable[[nn.Module], Any], message: str) -> None:
    twin = nn.Sequential(nn.LayerNorm(19), PackedLinear(layer()))
    with pytest.raises(Exception, match=f"a packed model {message}"):
        attempt(twin)


def test_the_compiler_goes_around_it() -> None:
    twin, x = nn.Sequential(PackedLinear(layer()), nn.ReLU()), torch.randn(3, 19)
    torch.testing.assert_close(torch.compile(twin, backend="eager")(x), twin(x))


def test_where_it_is_already_it_may_be_sent() -> None:
    twin = PackedLinear(layer())
    assert twin.to("cpu", torch.float32) is twin
    assert repr(twin) == "PackedLinear(in_features=19, out_features=13, dtype=torch.float32, then=none)"


def test_a_watched_layer_keeps_its_hook() -> None:
    seen: list[nn.Module] = []
    model = nn.Sequential(layer(), nn.Sequential(nn.Linear(13, 5)))
    model[0].register_forward_hook(lambda module, *_: seen.append(module))
    pack(model)
    with torch.no_grad():
        model(torch.randn(2, 19))
    assert [type(module) for module in (model[0], model[1][0])] == [nn.Linear, PackedLinear]
    assert seen == [model[0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gelu_behind_a_layer_is_packed_with_it(dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no bfloat16 on this processor")
    torch.manual_seed(0)
    part, x = FeedForward(19, 76, 0.0, 0).eval().to(dtype), torch.randn(2, 7, 19).to(dtype)
    expected = part.double()(x.double()).detach()
    part.to(dtype)
    pack(part)
    assert (part.expand.then, part.contract.then) == ("gelu", "none")
    tolerance = 1e-5 if dtype == torch.float32 else 2**-6
    with torch.no_grad():
        assert (part(x).double() - expected).abs().max() < tolerance * expected.abs().max()


@pytest.mark.parametrize("activation", [quick_gelu, ACTIVATIONS["gelu_tanh"]])
def test_another_activation_stays_where_it_is(activation: Callable[..., Any]) -> None:
    part = FeedForward(19, 76, 0.0, 0, activation).eval()
    expected = part(torch.ones(1, 19)).detach()
    pack(part)
    assert (part.expand.then, part.activation) == ("none", activation)
    torch.testing.assert_close(part(torch.ones(1, 19)), expected)


def test_weights_of_another_type_stay() -> None:
    class Quantised(nn.Parameter):
        """Its products would be its own."""

    part = FeedForward(19, 76, 0.0, 0).eval().requires_grad_(False)
    for module in (part.expand, part.contract):
        module.weight = Quantised(module.weight.data, requires_grad=False)
    pack(part)
    assert (type(part.expand), type(part.contract), part.activation) == (nn.Linear, nn.Linear, gelu)


def test_a_watched_layer_keeps_the_gelu_behind_it() -> None:
    part = FeedForward(19, 76, 0.0, 0).eval()
    seen: list[Any] = []
    part.expand.register_forward_hook(lambda *given: seen.append(given[2]))
    pack(part)
    assert (type(part.expand), part.activation) == (nn.Linear, gelu)
    with torch.no_grad():
        part(torch.ones(1, 19))
    assert seen[0].min() < -0.2  # GELU is never below -0.17


@pytest.mark.parametrize(
    ("dtype", "name", "multiplies", "expected"),
    [
        (torch.bfloat16, "Intel", True, True),
        (torch.bfloat16, "AMD EPYC", False, False),
        (torch.float32, "AMD EPYC", False, True),
        (torch.float32, "Intel", True, False),
        (torch.float32, "AMD64", True, False),
        (torch.float16, "AMD EPYC", True, False),
        (torch.float64, "AMD EPYC", True, False),
    ],
)
def test_where_it_pays(
    dtype: torch.dtype, name: str, multiplies: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "MULTIPLIES_BFLOAT16", multiplies)
    monkeypatch.setattr(packed, "processor_name", lambda: name)
    assert packing_pays(dtype) == expected
