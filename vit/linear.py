"""Products with weights: the type that they are computed in, and how a linear layer is computed when it is compiled."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from vit.processor import MULTIPLIES_BFLOAT16


def project(layer: nn.Module, x: Tensor) -> Tensor:
    """`layer(x)`, `b n i -> b n o`.

    Compiled, in bfloat16, for a processor that multiplies it, the bias of a plain linear layer is a sum of its own that
    the compiler joins to what follows: `addmm` would first copy it into every row of the result. The product is then
    rounded before the sum too. In float32 it did not pay everywhere (`LOG.md`).
    """
    if not is_plain(layer) or layer.bias is None or not _adds_apart(x):
        answer: Tensor = layer(x)
        return answer
    product = linear(x, layer.weight)
    return product + layer.bias.to(product.dtype)


def _adds_apart(x: Tensor) -> bool:
    if not torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return False
    return MULTIPLIES_BFLOAT16 and x.device.type == "cpu" and product_type(x) == torch.bfloat16


def is_plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether it is torch's linear layer and nothing else: no subclass, not watched, its `forward` not replaced."""
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    return type(layer) is nn.Linear and not any(hooks) and "forward" not in layer.__dict__


def product_type(vector: Tensor) -> torch.dtype:
    """The type in which a matrix product of it is computed: autocast's, but for integers and float64, or its own."""
    device = vector.device.type
    stays = not vector.is_floating_point() or vector.dtype == torch.float64
    if stays or not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return vector.dtype
    return torch.get_autocast_dtype(device)
