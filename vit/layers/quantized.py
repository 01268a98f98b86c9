"""Linear layers with eight-bit products for inference on x86 processors.

Weights are rounded to int8 once, with a scale for each output channel; vectors at every call, with a range for each
token, so that its result does not depend on the rest of the batch. The products are oneDNN's, through the operator that
torch's compiler uses for torchao's models. Dettmers et al. 2022 (LLM.int8), without its columns of outliers.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from vit.layers.feedforward import FeedForward
from vit.layers.packed import InferenceLinear
from vit.processor import HAS_VNNI

_LARGEST = 255 if HAS_VNNI else 127
"""Largest byte that vectors are rounded to. Without VNNI two products are added in 16 bits, which would overflow."""
_SMALLEST = 1e-30
"""Range that a vector is taken to have at least, so that equal numbers are not divided by zero."""
_FINEST = 1e-7
"""The same, as a share of its numbers: a smaller range is below their rounding."""

_TOKENS_AT_ONCE = 256
"""So many that what lies between the steps stays in the processor's cache."""


class RoundedLinear(nn.Module):
    """`linear(x)` with weights and vectors of eight bits, as a program of torch.export can hold it.

    An operator of the program packs the weights; a compiler that freezes them runs it once. Called as it is, the layer
    packs them every time: `QuantizedLinear` is for that. ValueError on any attempt to cast or move it.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weights = linear.weight.detach().float()
        scale = weights.abs().amax(dim=1).clamp(min=_SMALLEST) / 127
        rounded = (weights / scale[:, None]).round_().to(torch.int8)
        sums = rounded.float().sum(dim=1) * scale
        self.rounded = nn.Buffer(rounded)  # o i
        self.scale = nn.Buffer(scale)
        self.zeros = nn.Buffer(torch.zeros_like(scale, dtype=torch.int64))
        self.sums = nn.Buffer(sums)  # o: what a vector of ones gives
        offset = torch.zeros(self.out_features)
        if linear.bias is not None:
            offset.copy_(linear.bias.detach())
        self.offset = nn.Buffer(offset)

    def pack(self) -> Tensor:
        """The rounded weights in the processor's order."""
        packed: Tensor = torch.ops.onednn.qlinear_prepack(self.rounded, None)
        return packed

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, self.in_features).float()  # t i
        result = _product(tokens, lambda given: _multiply(given, self.pack(), self), self)
        return result.to(x.dtype).reshape(*x.shape[:-1], self.out_features)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RoundedLinear:
        probe = fn(torch.empty(0))
        if (probe.dtype, probe.device.type) != (torch.float32, "cpu"):
            raise ValueError("a model of eight bits stays float32 on the CPU: make another one from the original model")
        return cast(RoundedLinear, super()._apply(fn, recurse))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class QuantizedLinear(InferenceLinear):
    """`linear(x)` with weights and vectors of eight bits, for vectors of any type and with a result of that type.

    The weights are packed once.
    """

    takes_every_type = True

    def __init__(self, linear: nn.Linear, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(linear)
        self.dtype = dtype  # of the model that the layer is in, which may not be cast to another
        rounded = RoundedLinear(linear)
        self.packed = rounded.pack()
        self.scale, self.zeros = rounded.scale.detach(), rounded.zeros.detach()  # no buffers: this layer has no state
        self.sums, self.offset = rounded.sums.detach(), rounded.offset.detach()

    def product(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, self.in_features).float()  # t i
        if torch.compiler.is_compiling():
            result = _product(tokens, self.multiply_apart, self)
        else:
            result = tokens.new_empty(len(tokens), self.out_features)  # t o
            for part, out in zip(tokens.split(_TOKENS_AT_ONCE), result.split(_TOKENS_AT_ONCE), strict=True):
                _product(part, self.multiply_apart, self, out)
        return result.to(x.dtype).reshape(*x.shape[:-1], self.out_features)

    def multiply(self, x: Tensor) -> Tensor:
        return _multiply(x, self.packed, self)

    def result_type(self) -> torch.dtype:
        return torch.float32


def _product(
    tokens: Tensor,
    multiply: Callable[[Tensor], Tensor],
    layer: RoundedLinear | QuantizedLinear,
    out: Tensor | None = None,
) -> Tensor:
    """The layer's result, t o, of vectors t i, by products of bytes; `multiply` takes the vectors' bytes."""
    # every vector is lowest + step · bytes: behind a GELU nearly all numbers lie on one side of zero
    lowest, highest = tokens.amin(dim=1, keepdim=True), tokens.amax(dim=1, keepdim=True)  # t 1
    range_ = torch.maximum(highest - lowest, lowest.abs() * _FINEST).clamp_(min=_SMALLEST)
    product = multiply(_to_bytes((tokens - lowest).mul_(_LARGEST / range_)))
    result = torch.addr(layer.offset, lowest[:, 0], layer.sums, out=out)
    return result.addcmul_(product, range_ * (1 / _LARGEST))


def _multiply(x: Tensor, packed: Tensor, layer: RoundedLinear | QuantizedLinear) -> Tensor:
    product: Tensor = torch.ops.onednn.qlinear_pointwise.default(
        *(x, 1.0, 0, packed, layer.scale, layer.zeros, None),
        *(1.0, 0, torch.float32, "none", [], ""),
    )
    return product


torch.library.define("vit::gelu", "(Tensor x) -> Tensor")


@torch.library.impl("vit::gelu", "CPU")
def _gelu(x: Tensor) -> Tensor:
    return gelu(x)


torch.library.register_fake("vit::gelu", torch.empty_like)


def gelu_of_hidden(hidden: Tensor) -> Tensor:
    """GELU (erf) in place, for nothing else holds the vectors of a layer without hooks.

    One operator for the compiler: otherwise it computes GELU twice, for the next layer's range and for its bytes.
    """
    if torch.compiler.is_compiling():
        result: Tensor = torch.ops.vit.gelu(hidden)
        return result
    gelu(hidden, out=hidden)  # type: ignore[call-arg]  # torch's stub lacks it
    return hidden


def _to_bytes(steps: Tensor) -> Tensor:
    """Rounded, in place. Without the compiler float to int8, whose bytes wrap around, is faster than to uint8."""
    steps.round_()
    if torch.compiler.is_compiling():
        return steps.to(torch.uint8)
    rounded = steps.to(torch.int8) if _LARGEST <= 127 else steps.sub_(128).to(torch.int8).add_(-128)
    return rounded.view(torch.uint8)


def quantizes_here() -> bool:
    """True on an x86 processor, with a torch that has the operators."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return is_x86 and torch.backends.mkldnn.is_available() and hasattr(torch.ops.onednn, "qlinear_pointwise")


def exports_bytes() -> bool:
    """Whether torch can trace the packing of the weights in a program; 2.11 cannot, 2.14 can."""
    try:
        torch.ops.onednn.qlinear_prepack(torch.empty(2, 2, dtype=torch.int8, device="meta"), None)
    except NotImplementedError:
        return False
    return True


def quantize_linear_layers(model: nn.Module, source: nn.Module, names: Collection[str], *, packed: bool = True) -> None:
    """Quantise, in place, the linear layers `names` of `model`, from the weights of `source`, which it is a copy of."""
    for name in names:
        parent, _, child = name.rpartition(".")
        original = source.get_submodule(name)
        assert isinstance(original, nn.Linear)
        part = model.get_submodule(parent)
        if not packed:
            setattr(part, child, RoundedLinear(original).train(model.training))
            continue
        quantized = QuantizedLinear(original, model.get_parameter(f"{name}.weight").dtype)
        setattr(part, child, quantized.train(model.training))
        if isinstance(part, FeedForward) and child == "fc1" and part.activation is gelu:
            part.activation = gelu_of_hidden
