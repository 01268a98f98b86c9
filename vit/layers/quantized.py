"""Linear layers with eight-bit products for inference on x86 processors.

Weights are rounded to int8 once, with a scale for each output channel; vectors at every call, with a scale for each
token, so that its result does not depend on the rest of the batch. The products are oneDNN's, through the operator that
torch's compiler uses for torchao's models. Dettmers et al. 2022 (LLM.int8), without its columns of outliers.
"""

from __future__ import annotations

import platform
from collections.abc import Collection

import torch
from torch import Tensor, nn

from vit.layers.packed import InferenceLinear
from vit.processor import MULTIPLIES_BYTES

_LEVELS = 127 if MULTIPLIES_BYTES else 63
"""Largest absolute value of a rounded vector. Without VNNI two products are added in 16 bits, which would overflow."""
_ZERO = _LEVELS + 1
"""The unsigned byte that stands for 0: oneDNN is faster with unsigned vectors."""

_SMALLEST = 1e-30
"""Largest absolute value that a vector is taken to have at least, so that zeros are not divided by zero."""


class QuantizedLinear(InferenceLinear):
    """`linear(x)` with weights and vectors of eight bits, for vectors of any type and with a result of that type."""

    takes_every_type = True

    def __init__(self, linear: nn.Linear, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(linear)
        self.dtype = dtype  # of the model that the layer is in, which may not be cast to another
        weights = linear.weight.detach().float()
        scale = weights.abs().amax(dim=1).clamp(min=_SMALLEST) / 127
        rounded = (weights / scale[:, None]).round_().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(rounded, None)
        self.scale, self.zeros = scale, torch.zeros_like(scale, dtype=torch.int64)
        self.offset = torch.zeros(1) if self.bias is None else self.bias.float()

    def product(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, self.in_features)  # t i
        largest = tokens.abs().amax(dim=1, keepdim=True).float().clamp_(min=_SMALLEST)  # t 1
        scale = largest / _LEVELS
        # adding in int8 wraps around, and so gives the unsigned byte of the sum
        rounded = (tokens / scale).round_().to(torch.int8).add_(_ZERO - 256 * (_ZERO > 127)).view(torch.uint8)  # t i
        product = torch.ops.onednn.qlinear_pointwise(
            rounded, 1.0, _ZERO, self.packed, self.scale, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return torch.addcmul(self.offset, product, scale).to(x.dtype).reshape(*x.shape[:-1], self.out_features)


def quantizes_here() -> bool:
    """True on an x86 processor, with a torch that has the operators."""
    return torch.backends.mkldnn.is_available() and platform.machine().lower() in ("x86_64", "amd64")


def quantize_linear_layers(model: nn.Module, source: nn.Module, names: Collection[str]) -> None:
    """Quantise, in place, the linear layers `names` of `model`, from the weights of `source`, which it is a copy of."""
    for name in names:
        parent, _, child = name.rpartition(".")
        original = source.get_submodule(name)
        assert isinstance(original, nn.Linear)
        quantized = QuantizedLinear(original, model.get_parameter(f"{name}.weight").dtype)
        setattr(model.get_submodule(parent), child, quantized.train(model.training))
