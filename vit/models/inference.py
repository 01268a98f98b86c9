"""Inference-only copies of a model: weights are cast once and, on a CPU, packed or quantised once for the processor."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from difflib import get_close_matches
from typing import Literal, TypeVar

import torch
from torch import nn

from vit.config.arguments import check_type
from vit.config.rules import check
from vit.layers.packed import InferenceLinear, is_packable, pack_linear_layers, packing_is_faster
from vit.layers.quantized import RoundedLinear, exports_bytes, quantize_linear_layers, quantizes_here
from vit.models.model import Model

M = TypeVar("M", bound=Model)
_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def for_inference(
    model: M, dtype: torch.dtype | Literal["int8"] = torch.float32, *, packed: bool = True, keep: Sequence[str] = ()
) -> M:
    """An inference-only copy of `model`: in evaluation mode, with all tensors in `dtype`, for images of that type.

    Autocast casts the weights in every pass and keeps the residual stream in float32; this copy does neither. On a CPU
    where that is faster its plain linear layers (no hooks, not quantised) are `packed`, with the GELU that follows. A
    packed model cannot be cast, copied, saved or exported, and should have no hooks (GELU overwrites what `fc1` gave).
    Its `compile()` makes it faster, most with `int8` (`docs/performance.md`). Each copy is compiled anew, which takes
    up to a minute at the first call, and torch compiles about eight copies in a process.

    `int8`, on x86 processors: the blocks' linear layers multiply bytes, weights with a scale for each channel and
    vectors with one for each token. Patch embedding, norms, attention, head, and the layers whose names are in `keep`,
    compute in float32, which images have too. Without `packed` the model can be copied and exported, and is slow until
    a program of it is compiled (`vit export --format compiled`).

    ValueError for another type, for a packed model, a processor, model or torch without eight-bit products, for a name
    in `keep` that is no linear layer of the blocks, and for `keep` without effect.
    """
    check_type("model", model, nn.Module)
    check_type("keep", keep, Sequence[str])
    if dtype not in (*_TYPES, "int8"):
        choices = ", ".join(map(str, _TYPES))
        raise ValueError(f"dtype: {dtype!r} is not valid: choose from {choices}, or the string 'int8'")
    if any(isinstance(module, (InferenceLinear, RoundedLinear)) for module in model.modules()):
        raise ValueError("model: it is packed or of eight bits already; give the original model")
    if isinstance(dtype, str):
        return _quantized(model, keep, packed=packed)
    if keep:
        raise ValueError(f"keep: {keep!r} is not valid: it has an effect only with dtype='int8'")
    inference_copy = _frozen(model, dtype)
    if packed and _is_on_cpu(inference_copy) and packing_is_faster(dtype):
        pack_linear_layers(inference_copy)
    return inference_copy


def quantizable_layers(model: nn.Module) -> list[str]:
    """The names of the linear layers that `int8` quantises: those of the blocks, so neither the first nor the last."""
    return [name for name, part in model.named_modules() if name.startswith("blocks.") and is_packable(part)]


def check_quantizable(model: nn.Module) -> None:
    """ValueError for a model without linear layers in blocks, on another device than the CPU, or on another processor
    than x86.
    """
    if not quantizable_layers(model):
        raise ValueError(f"dtype: 'int8' is not valid: {type(model).__name__} has no blocks with linear layers")
    if not (_is_on_cpu(model) and quantizes_here()):
        raise ValueError("dtype: 'int8' is not valid: eight-bit products are computed on x86 processors only")


def _quantized(model: M, keep: Sequence[str], *, packed: bool) -> M:
    check_quantizable(model)
    if not packed and not exports_bytes():
        said = f"torch {torch.__version__} cannot export eight-bit products; 2.14 can"
        raise ValueError(f"dtype: 'int8' is not valid: {said}")
    layers = quantizable_layers(model)
    for name in keep:
        near = get_close_matches(name, layers, n=1) or layers[:1]
        rule = f"it is no linear layer of the blocks; did you mean {near[0]!r}?"
        check(name in layers, "keep", name, rule)
    inference_copy = _frozen(model, torch.float32)
    quantize_linear_layers(inference_copy, model, {*layers} - {*keep}, packed=packed)
    return inference_copy


def _frozen(model: M, dtype: torch.dtype) -> M:
    return deepcopy(model).to(dtype).eval().requires_grad_(False)


def _is_on_cpu(model: nn.Module) -> bool:
    return all(parameter.device.type == "cpu" for parameter in model.parameters())
