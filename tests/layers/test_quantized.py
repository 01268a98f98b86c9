"""Eight-bit linear layers: exact where nothing is rounded, close elsewhere, each token by itself."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from vit.config import ViTConfig
from vit.layers import quantized
from vit.layers.feedforward import FeedForward
from vit.layers.quantized import QuantizedLinear, RoundedLinear, quantizes_here
from vit.models import VisionTransformer
from vit.models.inference import for_inference, quantizable_layers

pytestmark = pytest.mark.skipif(not quantizes_here(), reason="no x86 processor, or a torch without oneDNN")


def layer(inputs: int = 19, outputs: int = 13, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(19,), (1, 19), (2, 7, 19), (0, 7, 19)])
def test_products_are_near_the_layers(bias: bool, shape: tuple[int, ...]) -> None:
    x, source = torch.randn(shape), layer(bias=bias)
    result, exact = QuantizedLinear(source)(x), source(x).detach()
    assert result.shape == exact.shape
    assert (result - exact).norm() <= 0.03 * exact.norm()


def test_whole_numbers_are_multiplied_exactly() -> None:
    """Where the largest weight of a channel is 127, and a vector's numbers span as many whole numbers as a byte."""
    generator = torch.Generator().manual_seed(0)
    source, most = layer(64, 32), quantized._LARGEST
    weights, x = (
        torch.randint(*ends, shape, generator=generator)
        for ends, shape in (((-127, 128), (32, 64)), ((0, most + 1), (5, 64)))
    )
    weights[:, 0], x[:, 0], x[:, 1] = 127, 0, most
    x -= torch.tensor([0, 5, 64, most, 1000])[:, None]
    with torch.no_grad():
        source.weight.copy_(weights)
    exact = (x.double() @ weights.double().T + source.bias.double()).detach()
    torch.testing.assert_close(QuantizedLinear(source)(x.float()).double(), exact, rtol=1e-6, atol=1e-2)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_products_do_not_overflow(sign: int) -> None:
    """Where pairs of products are added in 16 bits, full bytes would."""
    source = layer(512, 16, bias=False)
    nn.init.constant_(source.weight, 0.5)
    x = torch.full((3, 512), sign * 4.0)
    x[:, ::7] = 0
    torch.testing.assert_close(QuantizedLinear(source)(x), source(x).detach(), rtol=1e-5, atol=1e-5)


def test_a_tokens_result_does_not_depend_on_the_others() -> None:
    linear, x = QuantizedLinear(layer()), torch.randn(4, 5, 19)
    x[0] *= 1000
    assert torch.equal(linear(x)[2, 3], linear(x[2, 3]))


def test_zeros_and_tiny_numbers() -> None:
    source = layer()
    with torch.no_grad():
        source.weight[3] = 0
    x = torch.zeros(2, 19)
    x[1] = torch.finfo(torch.float32).tiny / 2
    assert torch.equal(QuantizedLinear(source)(x), source.bias.expand(2, -1))


@pytest.mark.parametrize("value", [1e-3, -5.0, 1e5, -1e7, 1e20])
def test_equal_numbers_of_any_size(value: float) -> None:
    """Their range is zero."""
    source, x = layer(64, 8), torch.full((2, 64), value)
    exact = source(x.double().float()).detach()
    torch.testing.assert_close(QuantizedLinear(source)(x), exact, rtol=1e-2, atol=1e-2 * abs(value))


@pytest.mark.parametrize("largest", [127, 255])
@pytest.mark.parametrize("compiled", [False, True])
def test_steps_become_bytes(largest: int, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized, "_LARGEST", largest)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiled)
    steps = torch.arange(largest + 1)
    assert torch.equal(quantized._to_bytes(steps + 0.3), steps.to(torch.uint8))


def test_it_takes_and_gives_bfloat16() -> None:
    source, x = layer(), torch.randn(3, 19).bfloat16()
    result = QuantizedLinear(source)(x)
    assert result.dtype == torch.bfloat16
    assert (result - source(x.float()).detach()).norm() <= 0.04 * source(x.float()).norm()


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda model: model(torch.randn(3, 19, requires_grad=True)), "gives no gradients"),
        (deepcopy, "can be neither copied nor saved"),
        (pickle.dumps, "can be neither copied nor saved"),
        (lambda model: model.state_dict(), "has no state_dict"),
        (lambda model: model.double(), "stays torch.float32 on the CPU"),
    ],
)
def test_what_it_cannot_do_is_one_line(attempt: Callable[[nn.Module], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attempt(QuantizedLinear(layer()))


# ------------------------------------------------------------------ models


def small() -> VisionTransformer:
    torch.manual_seed(0)
    model = VisionTransformer(
        ViTConfig(image_size=(16, 16), patch_size=(4, 4), width=64, depth=3, num_heads=4, num_classes=7)
    )
    nn.init.normal_(model.get_parameter("head.weight"))
    return model.eval()


def quantized_layers(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}


def test_a_model_of_eight_bits_has_float_ends() -> None:
    model, images = small(), torch.randn(3, 3, 16, 16)
    fast = for_inference(model, "int8")
    assert quantized_layers(fast) == set(quantizable_layers(model))
    assert {name.rpartition(".")[2] for name in quantized_layers(fast)} == {"qkv", "output", "fc1", "fc2"}
    with torch.inference_mode():
        exact, rounded = model(images), fast(images).float()
    assert 0 < (rounded - exact).norm() <= 0.08 * exact.norm()
    assert not quantized_layers(model)


def test_layers_can_be_kept() -> None:
    model, kept = small(), ["blocks.0.attention.qkv", "blocks.2.feedforward.fc2"]
    assert quantized_layers(for_inference(model, "int8", keep=kept)) == {*quantizable_layers(model)} - {*kept}
    with pytest.raises(ValueError, match=r"keep: 'blocks.0.attention.qvk' .* did you mean 'blocks.0.attention.qkv'\?"):
        for_inference(model, "int8", keep=["blocks.0.attention.qvk"])
    with pytest.raises(ValueError, match=r"keep: .* only with dtype='int8'"):
        for_inference(model, torch.float32, keep=kept)


@pytest.mark.parametrize("keep", ["blocks.0.attention.qkv", [3], None])
def test_what_is_kept_is_a_list_of_names(keep: Any) -> None:
    with pytest.raises(ValueError, match=r"keep: .* is not valid: it must be "):
        for_inference(small(), "int8", keep=keep)


def test_inputs_are_those_of_the_float_model() -> None:
    fast, images = for_inference(small(), "int8"), torch.randn(2, 3, 16, 16)
    with torch.inference_mode():
        expected = fast(images)
        assert expected.dtype == torch.float32
        torch.testing.assert_close(fast(images=images), expected)
        assert fast.forward_features(images).dtype == torch.float32
        with pytest.raises(ValueError, match=r"images: torch\.uint8 is not valid"):
            fast(torch.zeros(2, 3, 16, 16, dtype=torch.uint8))


@pytest.mark.parametrize("bias", [True, False])
def test_not_packed_the_layer_gives_the_same_numbers(bias: bool) -> None:
    source, x = layer(bias=bias), torch.randn(2, 7, 19)
    rounded, fast = RoundedLinear(source), QuantizedLinear(source)
    assert torch.equal(rounded(x), fast(x))
    assert rounded(x.bfloat16()).dtype == torch.bfloat16
    assert set(rounded.state_dict()) == {"rounded", "scale", "zeros", "sums", "offset"}
    assert not list(rounded.parameters())
    assert not list(fast.buffers()), "a packed layer has no state"


@pytest.mark.parametrize("packed", [True, False])
def test_the_copy_stays_as_it_is_when_the_original_is_trained_on(packed: bool) -> None:
    model, images = small(), torch.randn(3, 3, 16, 16)
    fast = for_inference(model, "int8", packed=packed)
    with torch.no_grad():
        before = fast(images)
        for parameter in model.parameters():
            parameter.add_(0.3)
        assert torch.equal(fast(images), before)


@pytest.mark.parametrize("cast", [nn.Module.bfloat16, nn.Module.double, nn.Module.half])
def test_a_model_that_is_not_packed_cannot_be_cast(cast: Callable[[nn.Module], nn.Module]) -> None:
    with pytest.raises(ValueError, match="a model of eight bits stays float32 on the CPU: make another one"):
        cast(for_inference(small(), "int8", packed=False))


def test_a_model_that_is_not_packed_can_be_copied_and_exported() -> None:
    model, images = small(), torch.randn(3, 3, 16, 16)
    loose = for_inference(model, "int8", packed=False, keep=["blocks.0.attention.qkv"])
    kinds = {name for name, part in loose.named_modules() if isinstance(part, RoundedLinear)}
    assert kinds == {*quantizable_layers(model)} - {"blocks.0.attention.qkv"}
    batch = torch.export.Dim("batch", min=1, max=64)
    with torch.no_grad():
        program = torch.export.export(deepcopy(loose), (images,), dynamic_shapes={"images": {0: batch}}).module()
        packed = for_inference(model, "int8", keep=["blocks.0.attention.qkv"])
        expected = packed(images[:2])
        assert torch.equal(loose(images[:2]), expected)
        torch.testing.assert_close(program(images[:2]), expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_it_gives_the_same_numbers(backend: str) -> None:
    torch.manual_seed(0)
    fast, compiled, images = for_inference(small(), "int8"), for_inference(small(), "int8"), torch.randn(3, 3, 16, 16)
    torch._dynamo.reset()  # it compiles a forward method eight times at most
    compiled.compile(backend=backend, fullgraph=True)
    with torch.inference_mode():
        for batch in (images, images[:1], images.repeat(2, 1, 1, 1)):
            torch.testing.assert_close(compiled(batch), fast(batch), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_compiler_itself_gives_nearly_the_same_numbers() -> None:
    """Sums in another order may round a byte otherwise."""
    model, images = small(), torch.randn(3, 3, 16, 16)
    limits: dict[Any, float] = {torch.float32: 1e-5, "int8": 0.03}
    for dtype, limit in limits.items():
        fast, compiled = for_inference(model, dtype), for_inference(model, dtype)
        compiled.compile()
        with torch.inference_mode():
            expected = fast(images)
            assert (compiled(images) - expected).norm() <= limit * expected.norm()


def test_gelu_behind_bytes_is_exact() -> None:
    hidden = torch.randn(5, 7)
    expected = nn.functional.gelu(hidden)
    assert torch.equal(torch.ops.vit.gelu(hidden), expected)
    assert torch.equal(quantized.gelu_of_hidden(hidden), expected)
    fast = for_inference(small(), "int8", keep=["blocks.1.feedforward.fc1"])
    kinds = [module.activation for module in fast.modules() if isinstance(module, FeedForward)]
    assert kinds == [quantized.gelu_of_hidden, nn.functional.gelu, quantized.gelu_of_hidden]


def test_what_cannot_be_quantised_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for packed in (True, False):
        with pytest.raises(ValueError, match="it is packed or of eight bits already"):
            for_inference(for_inference(small(), "int8", packed=packed))
    with pytest.raises(ValueError, match=r"choose from torch.float32, .*, or the string 'int8'"):
        for_inference(small(), "int4")  # type: ignore[arg-type]
    monkeypatch.setattr("vit.models.inference.quantizes_here", lambda: False)
    with pytest.raises(ValueError, match="'int8' is not valid: eight-bit products are computed on x86"):
        for_inference(small(), "int8")


def test_an_older_torch_that_cannot_export_bytes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.models.inference.exports_bytes", lambda: False)
    with pytest.raises(ValueError, match=r"^dtype: 'int8' is not valid: torch \S+ cannot export .*; 2\.14 can$"):
        for_inference(small(), "int8", packed=False)
    assert quantized_layers(for_inference(small(), "int8"))
