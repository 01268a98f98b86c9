"""Mean squared errors of a curve's estimates, at test points and at the training points themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vit.attention.kernel_regression import NadarayaWatson, leave_one_out
from vit.tasks.regression.curve import Points

CONVENTIONS = {
    "test.mse": "mean squared difference between the estimate and the curve itself, which has no noise",
    "val.mse": "the same at fresh points with noise, so it is at least the noise's variance",
    "ema.val.mse": "val.mse of the averaged widths (train.ema_decay); where there is an average, it chooses the "
    "checkpoint and is what is tested, and figures show the average alone, of epochs that were validated",
    "train.mse": "at the training points, with noise; each attends to itself too",
    "train.mse_leave_one_out": "the same, but no point attends to itself: what training lowers",
    "fixed": "all widths as they were before training",
    "widths": "w of exp(-((x - key) w)² / 2), one a key: the kernel's standard deviation is 1/w",
}


@dataclass(frozen=True)
class Regression:
    """Estimates (n,) at the test places, on the CPU, with the widths (m,) that made them."""

    estimates: Tensor
    widths: Tensor
    metrics: dict[str, float]


def estimate_in_chunks(kernel: NadarayaWatson, x: Tensor, chunk: int) -> Tensor:
    """Estimates (n,) at x (n,), the weights of at most `chunk` queries in memory at once."""
    with torch.no_grad():
        return torch.cat([kernel(part) for part in x.split(chunk)])


def mean_squared_error(kernel: NadarayaWatson, points: Points, chunk: int) -> float:
    return _mean_square(estimate_in_chunks(kernel, points.x, chunk) - points.y)


def leave_one_out_error(kernel: NadarayaWatson, chunk: int) -> float:
    """Mean squared error at the kernel's own points, each estimated from the others."""
    num_keys = len(kernel.keys)
    places = torch.arange(num_keys, device=kernel.keys.device).split(chunk)
    with torch.no_grad():
        estimates = [kernel(kernel.keys[rows], leave_one_out(rows, num_keys)) for rows in places]
    return _mean_square(torch.cat(estimates) - kernel.values)


def evaluate_kernel(kernel: NadarayaWatson, test: Points, chunk: int) -> Regression:
    """Evaluate a kernel at the test points and its own: test.mse, train.mse, train.mse_leave_one_out."""
    estimates = estimate_in_chunks(kernel, test.x, chunk)
    metrics = {
        "test.mse": _mean_square(estimates - test.y),
        "train.mse": mean_squared_error(kernel, Points(kernel.keys, kernel.values), chunk),
        "train.mse_leave_one_out": leave_one_out_error(kernel, chunk),
    }
    return Regression(estimates.cpu(), kernel.widths.detach().cpu(), metrics)


def regression_metrics(learned: Regression, fixed: Regression) -> dict[str, Any]:
    """The metrics of a learned kernel beside those of the fixed one."""
    widths = learned.widths
    return {
        "test.n_seen": len(learned.estimates),
        **learned.metrics,
        **{f"fixed.{name}": value for name, value in fixed.metrics.items()},
        "widths.mean": float(widths.mean()),
        "widths.min": float(widths.min()),
        "widths.max": float(widths.max()),
    }


def _mean_square(differences: Tensor) -> float:
    """Mean square, in float64 because thousands of squares are summed."""
    return float(differences.double().square().mean())
