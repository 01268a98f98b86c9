"""Kernel regression as a model to train: it learns one width a key (`attention/kernel_regression.py`)."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from vit.attention.kernel_regression import NadarayaWatson, leave_one_out
from vit.hub import check_kind, read_run
from vit.models.model import Model
from vit.tasks.regression.config import KernelConfig


class KernelRegressor(Model):
    """Estimates a curve from noisy points of it: x (m,) and y (m,), its keys and values."""

    def __init__(self, x: Tensor, y: Tensor, config: KernelConfig) -> None:
        super().__init__()
        self.kernel = NadarayaWatson(x, y, config.initial_width, learned=True)

    def forward(self, x: Tensor, own_keys: Tensor | None = None) -> Tensor:
        """Estimates (n,) at x (n,); `own_keys` (n,) names for each query the key that it may not attend to."""
        mask = None if own_keys is None else leave_one_out(own_keys, len(self.kernel.keys))
        return self.kernel(x, mask)


def load_regressor(path: Path, select: str = "best", weights: str = "auto") -> KernelRegressor:
    """A run's kernel regression with the points it was trained on; `select` and `weights` as in `open_model`."""
    return open_regressor(path, select, weights)[0]


def open_regressor(path: Path, select: str, weights: str) -> tuple[KernelRegressor, int]:
    """As `load_regressor`, with the number of optimizer steps that trained it."""
    tensors, state = read_run(path, select, weights)
    settings = dict(state["task"]["model"])
    check_kind(path, settings.pop("kind"), ("kernel_regression",))
    model = KernelRegressor(tensors["kernel.keys"], tensors["kernel.values"], KernelConfig(**settings))
    model.load_state_dict(tensors)
    return model, state["progress"]["step"]
