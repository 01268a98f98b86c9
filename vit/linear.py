"""Products with weights: the type that they are computed in, and the linear layer of every room above."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from vit.processor import MULTIPLIES_BFLOAT16


class Linear(nn.Linear):
    """`... i -> ... o`.

    Compiled, in bfloat16, for a processor that multiplies it, the bias is a sum of its own, which the compiler joins to
    what follows: `addmm` would first copy it into every row of the result. In float32 that does not pay (`LOG.md`).
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is None or not _adds_apart(x):
            return super().forward(x)
        product = linear(x, self.weight)
        return product + self.bias.to(product.dtype)


def _adds_apart(x: Tensor) -> bool:
    if not torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return False
    return MULTIPLIES_BFLOAT16 and x.device.type == "cpu" and product_type(x) == torch.bfloat16


def product_type(vector: Tensor) -> torch.dtype:
    """The type in which a matrix product of it is computed: autocast's, but for integers and float64, or its own."""
    device = vector.device.type
    stays = not vector.is_floating_point() or vector.dtype == torch.float64
    if stays or not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return vector.dtype
    return torch.get_autocast_dtype(device)
