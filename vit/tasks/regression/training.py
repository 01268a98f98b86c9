"""Training kernel regression: points, errors, and snapshots of the widths on the way.

A training point is estimated from the others: with its own key it would learn to copy itself.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vit.attention.kernel_regression import NadarayaWatson
from vit.engine import Accelerator, rank_and_world_size
from vit.stopwatch import Timer, untimed
from vit.tasks.regression.config import RegressionRun
from vit.tasks.regression.curve import PointBatch, PointLoader, open_curve
from vit.tasks.regression.metrics import mean_squared_error
from vit.tasks.regression.model import KernelRegressor
from vit.tasks.task import NonFinite, TaskInfo

_SNAPSHOTS = 24


class KernelRegression:
    """The `Task` of a `RegressionRun`. ValueError for any setting that cannot be honoured."""

    def __init__(self, config: RegressionRun, accelerator: Accelerator, timer: Timer = untimed) -> None:
        self.config = config
        self.accelerator = accelerator
        with timer("open the data"):
            self.train, self.val = open_curve(config.data)
        self.info = TaskInfo(
            model_name="nadaraya_watson",
            dataset="curve",
            fingerprint=f"{self.train.fingerprint}+{self.val.fingerprint}",
            unit="points",
            metric="mse",
            higher_is_better=False,
        )
        self.model = KernelRegressor(self.train.x, self.train.y, config.model)
        self.train_loader = PointLoader(
            self.train,
            config.data.passes,
            accumulation_steps=config.train.accumulation_steps,
            **rank_and_world_size(accelerator),
        )
        self.snapshots: dict[int, list[float]] = {}
        """Epoch → the widths before its first step, for the figures; where an average is kept, the average's."""
        self._epoch = 0
        self._snapshot_epochs = snapshot_epochs(config.train.epochs)

    def prepare(self, batch: PointBatch, device: torch.device) -> PointBatch:
        return batch.to(device)

    def losses(self, model: nn.Module, batch: PointBatch, epoch: int) -> tuple[Tensor, Tensor]:
        """Squared errors, each point estimated from the others."""
        self._epoch = epoch
        is_shown = epoch == 0 or self.config.train.ema_decay is None
        if is_shown and epoch in self._snapshot_epochs and epoch not in self.snapshots:
            self.snapshots[epoch] = self.model.kernel.widths.detach().tolist()
        losses = (model(batch.x, batch.indices).float() - batch.y).square()
        return losses, torch.zeros_like(losses)

    def sample_name(self, index: int) -> str:
        return f"x = {float(self.train.x[index]):.3f}"

    def validate(self, model: nn.Module) -> dict[str, float]:
        """The error at fresh points with noise; every process evaluates all of them."""
        points = self.val.to(self.accelerator.device)
        kernel = self.kernel_of(model)
        error = mean_squared_error(kernel, points, self.config.data.eval_batch_size)
        if not math.isfinite(error):
            raise NonFinite("the model's outputs at validation points are not finite")
        if self.config.train.ema_decay is not None and self._epoch + 1 in self._snapshot_epochs:
            self.snapshots[self._epoch + 1] = kernel.widths.detach().tolist()  # the average is validated last
        return {"mse": error}

    def kernel_of(self, model: nn.Module) -> NadarayaWatson:
        kernel = self.accelerator.unwrap_model(model).kernel
        assert isinstance(kernel, NadarayaWatson)
        return kernel

    def state(self) -> dict[str, Any]:
        model = {"kind": "kernel_regression", **asdict(self.config.model)}
        widths = {str(epoch): widths for epoch, widths in self.snapshots.items()}
        return {"model": model, "widths": widths, "epoch": self._epoch}

    def load_state(self, state: dict[str, Any]) -> None:
        self.snapshots = {int(epoch): widths for epoch, widths in state["widths"].items()}
        self._epoch = state.get("epoch", max(self.snapshots, default=0))
        if "epoch" not in state and self.config.train.ema_decay is not None:  # an earlier version kept raw widths
            self.snapshots = {epoch: widths for epoch, widths in self.snapshots.items() if epoch == 0}


def snapshot_epochs(epochs: int) -> set[int]:
    """Epochs whose widths are kept: the first, and others at growing intervals."""
    return {0, *np.geomspace(1, epochs, _SNAPSHOTS).round().astype(int).tolist()}


open_task = KernelRegression
