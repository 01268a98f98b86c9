"""Kernel regression as a model to train: what it learns is one width a key. The formula is the attention room's."""

from __future__ import annotations

from torch import Tensor

from vit.attention.kernel_regression import NadarayaWatson, leave_one_out
from vit.config import KernelConfig
from vit.models.model import Model


class KernelRegressor(Model):
    """Estimates a curve from noisy points of it: x (m,) and y (m,), its keys and values."""

    def __init__(self, x: Tensor, y: Tensor, config: KernelConfig) -> None:
        super().__init__()
        self.kernel = NadarayaWatson(x, y, config.initial_width, learned=True)

    def forward(self, x: Tensor, own_keys: Tensor | None = None) -> Tensor:
        """Estimates (n,) at x (n,); `own_keys` (n,) names for each query the key that it may not attend to."""
        mask = None if own_keys is None else leave_one_out(own_keys, len(self.kernel.keys))
        return self.kernel(x, mask)
