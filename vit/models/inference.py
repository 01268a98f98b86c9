"""A model that only answers: its weights are cast once and, on a CPU, laid out once for the processor's products."""

from __future__ import annotations

from copy import deepcopy
from typing import TypeVar

import torch
from torch import nn

from vit.layers.packed import pack, packing_pays

M = TypeVar("M", bound=nn.Module)


def for_inference(model: M, dtype: torch.dtype = torch.float32, *, packed: bool = True) -> M:
    """A copy of `model` that only answers: in evaluation mode, all its weights in `dtype`, for images of that type.

    Autocast casts the weights anew at every call and keeps the sums between blocks in float32; this copy does neither.
    On a CPU where that is faster its linear layers are `packed`; it then stays there and is neither compiled (give
    `packed=False`) nor saved. ValueError for a type that is not one of real numbers.
    """
    if not dtype.is_floating_point:
        raise ValueError(
            f"dtype: {dtype} is not valid: a model computes in torch.float32, bfloat16, float16 or float64"
        )
    twin = deepcopy(model).to(dtype).eval().requires_grad_(False)
    on_cpu = all(parameter.device.type == "cpu" for parameter in twin.parameters())
    if packed and on_cpu and packing_pays(dtype):
        pack(twin)
    return twin
