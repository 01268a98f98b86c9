"""A kernel regression's plan, and its results: errors to the curve, figures, model card."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vit.attention.kernel_regression import NadarayaWatson
from vit.figures import kernel_regression as figures
from vit.figures.style import save_figure
from vit.runs import find_checkpoint, read_checkpoint, read_metrics, write_json
from vit.tasks.regression.config import RegressionRun
from vit.tasks.regression.curve import INTERVAL, Points, even_points, true_curve
from vit.tasks.regression.metrics import (
    CONVENTIONS,
    Regression,
    estimate_in_chunks,
    evaluate_kernel,
    regression_metrics,
)
from vit.tasks.regression.training import KernelRegression
from vit.tasks.task import Rates
from vit.wording import counted, markdown_table

_MOST_PANELS = 5
_MOST_ROWS = 200
_PICTURES = ("estimates", "wiggles", "kernels", "weights", "errors")


class RegressionReport:
    """The `Report` of a `KernelRegression`."""

    def __init__(self, task: KernelRegression) -> None:
        self.task = task

    def describe(self) -> dict[str, str]:
        task, data = self.task, self.task.config.data
        low, high = INTERVAL
        return {
            "model": f"{task.info.model_name}, a kernel for each of {len(task.train):,} keys",
            "points": f"{len(task.train):,} to train on in [{low:g}, {high:g}], noise {data.noise:g}; "
            f"{len(task.val):,} to validate, {data.test_points:,} to test",
        }

    def plan(self, precision: str) -> dict[str, str]:
        points = len(self.task.train)
        return {"weights": f"one for each of {points:,} × {points:,} pairs of points, in {precision}"}

    def test(self, model: nn.Module, _: dict[str, Any], /) -> Regression:
        return self._evaluate(self.task.kernel_of(model))

    def _evaluate(self, kernel: NadarayaWatson) -> Regression:
        data = self.task.config.data
        test = even_points(data.test_points).to(self.task.accelerator.device)
        return evaluate_kernel(kernel, test, data.eval_batch_size)

    def _evaluate_widths(self, widths: float | Tensor) -> Regression:
        kernel = self.task.model.kernel
        return self._evaluate(NadarayaWatson(kernel.keys, kernel.values, widths))

    def summary(self, best: Regression, last: Regression) -> dict[str, Any]:
        config = self.task.config
        return {
            "train.n_points": len(self.task.train),
            "test.n_total": config.data.test_points,
            **regression_metrics(best, self._evaluate_widths(config.model.initial_width)),
            "last.test.mse": last.metrics["test.mse"],
            "noise_variance": config.data.noise**2,
        }

    def write(self, run: Path, best: Regression, summary: dict[str, Any], _rates: Rates | None) -> None:
        config = self.task.config
        at_epoch = {epoch: self._evaluate_widths(torch.tensor(w)) for epoch, w in self.task.snapshots.items()}
        group = "model" if config.train.ema_decay is None else "ema"
        last = read_checkpoint(find_checkpoint(run, "last"), [group]).tensors[group]
        at_epoch[config.train.epochs] = self._evaluate_widths(last["kernel.widths"])
        best_epoch = summary["best.step"] // config.data.passes
        test = even_points(config.data.test_points)
        draw_run(
            run, (self.task.train, test), dict(sorted((at_epoch | {best_epoch: best}).items())), best_epoch, config
        )
        stored = {"x": test.x.tolist(), "curve": test.y.tolist(), "estimate": best.estimates.tolist()}
        (run / "predictions").mkdir(exist_ok=True)
        write_json(run / "predictions" / "test.json", stored)
        (run / "README.md").write_text(model_card(run, summary), encoding="utf-8")


open_report = RegressionReport
NEXT = ("vit eval {run}",)


def headline(summary: dict[str, Any]) -> str:
    """The result in a few words."""
    return f"test error {summary['test.mse']:.4f}, of the fixed kernel {summary['fixed.test.mse']:.4f}"


def draw_run(
    run: Path, points: tuple[Points, Points], found: Mapping[int, Regression], best_epoch: int, config: RegressionRun
) -> None:
    """Draw the figures of a run, with their numbers.

    `points`: where the curve was seen and where it is estimated; `found`: epoch → estimates after it, in order.
    """
    folder = run / "figures"
    folder.mkdir(exist_ok=True)
    widths = found[best_epoch].widths
    _draw_estimates(folder / "estimates.png", points, found, best_epoch)
    chunk = config.data.eval_batch_size
    _draw_wiggles(folder / "wiggles.png", points, widths, config.model.initial_width, chunk)
    keys, fixed_width = points[0].x, config.model.initial_width
    numbers = {"keys": keys, "widths": widths, "fixed_width": fixed_width, "conventions": CONVENTIONS}
    save_figure(figures.plot_kernels(keys.numpy(), widths.numpy(), fixed_width), folder / "kernels.png", numbers)
    _draw_weights(folder / "weights.png", points, widths, config.model.initial_width)
    _draw_errors(folder / "errors.png", read_metrics(run), found, config)


def _draw_estimates(
    path: Path, points: tuple[Points, Points], found: Mapping[int, Regression], best_epoch: int
) -> None:
    train, test = points
    epochs = list(found)
    places = np.linspace(0, len(epochs) - 1, min(len(epochs), _MOST_PANELS)).round().astype(int)
    shown = {epoch: found[epoch] for epoch in sorted({*(epochs[place] for place in places), best_epoch})}
    panels = {}
    for epoch, result in shown.items():
        when = f"after epoch {epoch}" if epoch else "before training: the fixed kernel"
        how = ", chosen by validation" if epoch == best_epoch else ""
        title = f"{when}{how}, squared error to the curve {result.metrics['test.mse']:.3f}"
        panels[title] = result.estimates.numpy()
    numbers = {
        "x": test.x,
        "curve": test.y,
        "estimates": {epoch: result.estimates for epoch, result in shown.items()},
        "test.mse": {epoch: result.metrics["test.mse"] for epoch, result in shown.items()},
        "training_points": {"x": train.x, "y": train.y},
        "conventions": CONVENTIONS | {"estimates": "epoch → estimate at x with the widths after that epoch"},
    }
    figure = figures.plot_estimates(test.x.numpy(), test.y.numpy(), panels, train.x.numpy(), train.y.numpy())
    save_figure(figure, path, numbers)


def _draw_wiggles(path: Path, points: tuple[Points, Points], widths: Tensor, fixed_width: float, chunk: int) -> None:
    """Draw the part of the estimate that comes from noise: an estimate is linear in the values, so noise adds to it."""
    train, test = points
    noise = train.y - true_curve(train.x)
    by_name = {"fixed": torch.tensor(fixed_width), "learned": widths}
    kernels = {name: NadarayaWatson(train.x, noise, w) for name, w in by_name.items()}
    parts = {name: estimate_in_chunks(kernel, test.x, chunk) for name, kernel in kernels.items()}
    squares = {name: float(part.square().mean()) for name, part in parts.items()}
    labels = {name: f"{name}, mean square {square:.3f}" for name, square in squares.items()}
    numbers = {
        "x": test.x,
        "parts": parts,
        "mean_squares": squares,
        "training_points": {"x": train.x, "noise": noise},
        "conventions": CONVENTIONS | {"parts": "the estimate from the noise of the training points alone"},
    }
    lines = {labels[name]: part.numpy() for name, part in parts.items()}
    save_figure(figures.plot_wiggles(test.x.numpy(), lines, train.x.numpy(), noise.numpy()), path, numbers)


def _draw_weights(path: Path, points: tuple[Points, Points], widths: Tensor, fixed_width: float) -> None:
    train, test = points
    queries = test.x[_evenly(len(test))]
    first = _evenly(len(train))
    by_title = {
        f"fixed kernel, w = {fixed_width:g}": torch.tensor(fixed_width),
        "learned kernels, one w a key": widths,
    }
    weights = {title: NadarayaWatson(train.x, train.y, w).weights(queries).numpy() for title, w in by_title.items()}
    maps = {title: np.add.reduceat(of_all, first, axis=1).round(6) for title, of_all in weights.items()}
    keys = train.x[first]
    numbers = {
        "queries": queries,
        "keys": keys,
        "weights": maps,
        "conventions": CONVENTIONS
        | {"weights": "rows: queries, columns: keys and, of many keys, those up to the next"},
    }
    save_figure(figures.plot_weight_maps(maps, queries.numpy(), keys.numpy()), path, numbers)


def _evenly(count: int) -> np.ndarray:
    """At most `_MOST_ROWS` evenly spaced places below `count`, from 0 on."""
    return np.unique(np.linspace(0, count, min(count, _MOST_ROWS), endpoint=False).astype(int))


def _draw_errors(
    path: Path, history: list[dict[str, Any]], found: Mapping[int, Regression], config: RegressionRun
) -> None:
    variance = config.data.noise**2
    steps = [float(epoch * config.data.passes) for epoch in found]
    metrics = [result.metrics for result in found.values()]
    chooses = "val.mse" if config.train.ema_decay is None else "ema.val.mse"
    validated = [record for record in history if chooses in record]
    lines: dict[str, tuple[list[float], list[float]]] = {
        "leave_one_out": (steps, [entry["train.mse_leave_one_out"] for entry in metrics]),
        "train": (steps, [entry["train.mse"] for entry in metrics]),
        "val": ([record["step"] for record in validated], [record[chooses] for record in validated]),
        "test": (steps, [entry["test.mse"] + variance for entry in metrics]),
        "noise": ([steps[0], steps[-1]], [variance, variance]),
    }
    rule = {name: label for name, (label, _, _) in figures.ERRORS.items()} | {"lines": "steps, errors"}
    numbers = {"lines": lines, "history": history, "conventions": CONVENTIONS | rule}
    save_figure(figures.plot_errors(lines), path, numbers)


def model_card(run: Path, summary: dict[str, Any]) -> str:
    """The regression, its data and its measured numbers as Markdown."""
    rows = [
        ("test: squared error to the curve", f"{summary['test.mse']:.4f} at {summary['test.n_seen']} places"),
        ("the same of the fixed kernel", f"{summary['fixed.test.mse']:.4f}"),
        ("training points, own key hidden", f"{summary['train.mse_leave_one_out']:.4f}"),
        ("training points, own key seen", f"{summary['train.mse']:.4f}"),
        ("validation (chose the widths)", f"{summary['val.mse']:.4f} at step {summary['best.step']}"),
        ("variance of the noise", f"{summary['noise_variance']:.4f}"),
        (
            "w, mean (and range)",
            f"{summary['widths.mean']:.3f} ({summary['widths.min']:.3f}–{summary['widths.max']:.3f})",
        ),
        (
            "training",
            f"{counted(summary['train.n_points'], 'point')}, {counted(summary['steps'], 'step')}, "
            f"{summary['seconds']:.0f} s",
        ),
        ("device, seed", f"{summary['device']}, {summary['seed']}"),
    ]
    pictures = "\n\n".join(f"![{name}](figures/{name}.png)" for name in _PICTURES)
    return (
        f"# Nadaraya–Watson kernel regression, one learned width a key\n\n{markdown_table(('measured', ''), rows)}\n\n"
        "Training points have noise and so have errors at them and at the validation points; the test error is to the "
        "curve itself. Each training point was estimated from the others. Evaluate again with\n\n"
        f"    vit eval {shlex.quote(str(run))}\n\n{pictures}\n"
    )
