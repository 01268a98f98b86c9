"""Linear layers and the type of matrix products under autocast."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from vit.compiling import compiles_here
from vit.processor import MULTIPLIES_BFLOAT16


def project(layer: nn.Module, x: Tensor) -> Tensor:
    """`layer(x)`, `b n i -> b n o`; the bias is added separately where the compiler can fuse that sum."""
    if (
        compiles_here()
        and MULTIPLIES_BFLOAT16
        and is_plain(layer)
        and layer.bias is not None
        and x.device.type == "cpu"
        and matmul_dtype(x) == torch.bfloat16
    ):
        # `addmm` first copies the bias into every row of the result. A separate sum is fused with what follows, and the
        # product is rounded before it too. In float32 this was not faster everywhere (`LOG.md`).
        product = linear(x, layer.weight)
        return product + layer.bias.to(product.dtype)
    result: Tensor = layer(x)
    return result


def is_plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """True for torch's own linear layer: no subclass, no hooks, `forward` not replaced."""
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    return type(layer) is nn.Linear and not any(hooks) and "forward" not in layer.__dict__


def matmul_dtype(vector: Tensor) -> torch.dtype:
    """The type of a matrix product: autocast's, except for integers and float64, else the vector's own."""
    device = vector.device.type
    stays = not vector.is_floating_point() or vector.dtype == torch.float64
    # what is compiled is on a device that has autocast, and torch 2.11 does not trace the question
    knows_autocast = torch.compiler.is_dynamo_compiling() or torch.amp.is_autocast_available(device)
    if stays or not knows_autocast or not torch.is_autocast_enabled(device):
        return vector.dtype
    return torch.get_autocast_dtype(device)
