"""A model that only answers: its weights are cast once and, on a CPU, laid out once for the processor's products."""

from __future__ import annotations

from copy import deepcopy
from typing import TypeVar

import torch

from vit.layers.packed import PackedLinear, pack, packing_pays
from vit.models.model import Model

M = TypeVar("M", bound=Model)
_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def for_inference(model: M, dtype: torch.dtype = torch.float32, *, packed: bool = True) -> M:
    """A copy of `model` that only answers: in evaluation mode, all that it holds in `dtype`, for images of that type.

    Autocast casts the weights in every pass and keeps the sums between blocks in float32; this copy does neither. On
    a CPU where that is faster its plain linear layers (no hooks, not quantised) are `packed`, with the GELU behind
    them: it then keeps that type, is neither copied nor saved, and should not be watched or compiled (give
    `packed=False`). ValueError for another type, and for a packed model.
    """
    if dtype not in _TYPES:
        raise ValueError(f"dtype: {dtype!r} is not valid: choose from {', '.join(str(each) for each in _TYPES)}")
    if any(isinstance(module, PackedLinear) for module in model.modules()):
        raise ValueError("model: it is packed already; give the model that it was made of")
    twin = deepcopy(model).to(dtype).eval().requires_grad_(False)
    on_cpu = all(parameter.device.type == "cpu" for parameter in twin.parameters())
    if packed and on_cpu and packing_pays(dtype):
        pack(twin)
    return twin
