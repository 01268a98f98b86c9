"""Training kernel regression: which points, which error, and what the widths were on the way.

A training point is estimated from the others: with its own key it would learn to copy itself.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from vit.attention.kernel_regression import NadarayaWatson
from vit.config import RegressionRun
from vit.data.functions import INTERVAL, PointBatch, PointLoader, even_points, open_curve
from vit.evaluation.regression import Regression, judge, mean_squared_error, regression_metrics
from vit.models.kernel_regressor import KernelRegressor
from vit.runs import find_checkpoint, read_checkpoint, write_json
from vit.training.interruption import NonFinite
from vit.training.tasks.task import Goal

_SNAPSHOTS = 24


class KernelRegression:
    """The `Task` of a `RegressionRun`. ValueError for any setting that cannot be honoured."""

    unit = "points"
    counts_hits = False
    goal = Goal("mse", higher_is_better=False)
    model_name = "nadaraya_watson"
    dataset = "curve"

    def __init__(self, config: RegressionRun, accelerator: Accelerator) -> None:
        self.config = config
        self.accelerator = accelerator
        self.train, self.val = open_curve(config.data)
        self.fingerprint = f"{self.train.fingerprint}+{self.val.fingerprint}"
        self.model = KernelRegressor(self.train.x, self.train.y, config.model)
        self.train_loader = PointLoader(
            self.train,
            config.data.passes,
            accumulation_steps=config.train.accumulation_steps,
            rank=accelerator.process_index,
            world_size=accelerator.num_processes,
        )
        self._snapshot_epochs = snapshot_epochs(config.train.epochs)
        self._widths: dict[int, list[float]] = {}

    def notes(self) -> list[str]:
        return []

    def losses(self, model: nn.Module, batch: PointBatch, epoch: int) -> tuple[Tensor, Tensor]:
        """Squared errors, each point estimated from the others. Before the first step of some epochs the widths are
        kept, for the figures.
        """
        if epoch in self._snapshot_epochs and epoch not in self._widths:
            self._widths[epoch] = self.model.kernel.widths.detach().tolist()
        losses = (model(batch.x, batch.indices).float() - batch.y).square()
        return losses, torch.zeros_like(losses)

    def names(self, indices: list[int]) -> list[str]:
        return [f"x = {float(self.train.x[index]):.3f}" for index in indices]

    def validate(self, model: nn.Module) -> dict[str, float]:
        """At fresh points with noise; every process judges all of them."""
        points = self.val.to(self.accelerator.device)
        error = mean_squared_error(self._kernel_of(model), points, self.config.data.eval_batch_size)
        if not math.isfinite(error):
            raise NonFinite("the model's answers at validation points are not finite")
        return {"mse": error}

    def test(self, model: nn.Module) -> Regression:
        return self._judge(self._kernel_of(model))

    def _kernel_of(self, model: nn.Module) -> NadarayaWatson:
        kernel = self.accelerator.unwrap_model(model).kernel
        assert isinstance(kernel, NadarayaWatson)
        return kernel

    def _judge(self, kernel: NadarayaWatson) -> Regression:
        test = even_points(self.config.data.test_points).to(self.accelerator.device)
        return judge(kernel, test, self.config.data.eval_batch_size)

    def _with_widths(self, widths: float | Tensor) -> NadarayaWatson:
        kernel = self.model.kernel
        return NadarayaWatson(kernel.keys, kernel.values, widths)

    def state(self) -> dict[str, Any]:
        model = {"kind": "kernel_regression", **asdict(self.config.model)}
        return {"model": model, "widths": {str(epoch): widths for epoch, widths in self._widths.items()}}

    def recall(self, state: dict[str, Any]) -> None:
        self._widths = {int(epoch): widths for epoch, widths in state["widths"].items()}

    def summary(self, best: Regression, last: Regression) -> dict[str, Any]:
        fixed = self._judge(self._with_widths(self.config.model.initial_width))
        return {
            "train.n_points": len(self.train),
            "test.n_total": self.config.data.test_points,
            **regression_metrics(best, fixed),
            "last.test.mse": last.metrics["test.mse"],
            "noise_variance": self.config.data.noise**2,
        }

    def write(self, run: Path, best: Regression, summary: dict[str, Any]) -> None:
        from vit.training.tasks.kernel_regression_card import Sampled, draw_run, model_card

        at_epoch = {epoch: self._judge(self._with_widths(torch.tensor(w))) for epoch, w in self._widths.items()}
        last = read_checkpoint(find_checkpoint(run, "last"), ["model"]).tensors["model"]
        at_epoch[self.config.train.epochs] = self._judge(self._with_widths(last["kernel.widths"]))
        best_epoch = summary["best.step"] // self.config.data.passes
        found = dict(sorted((at_epoch | {best_epoch: best}).items()))
        test = even_points(self.config.data.test_points)
        draw_run(run, Sampled(self.train, test), found, best_epoch, self.config)
        stored = {"x": test.x.tolist(), "curve": test.y.tolist(), "estimate": best.estimates.tolist()}
        (run / "predictions").mkdir(exist_ok=True)
        write_json(run / "predictions" / "test.json", stored)
        (run / "README.md").write_text(model_card(run, summary))

    def plan(self, precision: str) -> dict[str, str]:
        data = self.config.data
        low, high = INTERVAL
        return {
            "model": f"{self.model_name}, a kernel for each of {len(self.train):,} keys",
            "points": f"{len(self.train):,} to train on in [{low:g}, {high:g}], noise {data.noise:g}; "
            f"{len(self.val):,} to validate, {data.test_points:,} to test",
            "weights": f"one for each of {len(self.train):,} × {len(self.train):,} pairs of points, in {precision}",
        }


def snapshot_epochs(epochs: int) -> set[int]:
    """Epochs whose widths are kept: the first, and others ever farther apart."""
    return {0, *np.geomspace(1, epochs, _SNAPSHOTS).round().astype(int).tolist()}
