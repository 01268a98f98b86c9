"""Inference-only copies of a model: weights are cast once and, on a CPU, packed once for the processor."""

from __future__ import annotations

from copy import deepcopy
from typing import TypeVar

import torch
from torch import nn

from vit.config.arguments import check_type
from vit.layers.packed import PackedLinear, pack_linear_layers, packing_is_faster
from vit.models.model import Model

M = TypeVar("M", bound=Model)
_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def for_inference(model: M, dtype: torch.dtype = torch.float32, *, packed: bool = True) -> M:
    """An inference-only copy of `model`: in evaluation mode, with all tensors in `dtype`, for images of that type.

    Autocast casts the weights in every pass and keeps the residual stream in float32; this copy does neither. On a CPU
    where that is faster its plain linear layers (no hooks, not quantised) are `packed`, with the GELU that follows. A
    packed model cannot be cast, copied or saved, and should have no hooks and not be compiled (give `packed=False`).
    ValueError for another type, and for a packed model.
    """
    check_type("model", model, nn.Module)
    if dtype not in _TYPES:
        raise ValueError(f"dtype: {dtype!r} is not valid: choose from {', '.join(str(each) for each in _TYPES)}")
    if any(isinstance(module, PackedLinear) for module in model.modules()):
        raise ValueError("model: it is packed already; give the original model")
    inference_copy = deepcopy(model).to(dtype).eval().requires_grad_(False)
    on_cpu = all(parameter.device.type == "cpu" for parameter in inference_copy.parameters())
    if packed and on_cpu and packing_is_faster(dtype):
        pack_linear_layers(inference_copy)
    return inference_copy
