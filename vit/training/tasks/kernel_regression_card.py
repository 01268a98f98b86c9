"""What a finished kernel regression shows of itself: its pictures and a card. It trains nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vit.attention.kernel_regression import NadarayaWatson
from vit.config import RegressionRun
from vit.data.functions import Points, curve
from vit.evaluation.regression import CONVENTIONS, Regression
from vit.figures import kernel_regression as figures
from vit.figures.style import save_figure
from vit.runs import read_metrics

_MOST_PANELS = 5
_MOST_ROWS = 200
_PICTURES = ("estimates", "wiggles", "kernels", "weights", "errors")


class Sampled(NamedTuple):
    """Where the curve was seen, and where it is estimated."""

    train: Points
    test: Points


def draw_run(
    run: Path, points: Sampled, found: Mapping[int, Regression], best_epoch: int, config: RegressionRun
) -> None:
    """The pictures of a run, with their numbers. `found`: epoch → what was estimated after it, in order."""
    folder = run / "figures"
    folder.mkdir(exist_ok=True)
    widths = found[best_epoch].widths
    _draw_estimates(folder / "estimates.png", points, found, best_epoch)
    _draw_wiggles(folder / "wiggles.png", points, widths, config.model.initial_width)
    _draw_kernels(folder / "kernels.png", points.train, widths, config.model.initial_width)
    _draw_weights(folder / "weights.png", points, widths, config.model.initial_width)
    _draw_errors(folder / "errors.png", read_metrics(run), found, config)


def _draw_estimates(path: Path, points: Sampled, found: Mapping[int, Regression], best_epoch: int) -> None:
    train, test = points
    shown = {epoch: found[epoch] for epoch in sorted({*_spread(list(found)), best_epoch})}
    panels = {
        _title(epoch, result, chosen=epoch == best_epoch): result.estimates.numpy() for epoch, result in shown.items()
    }
    numbers = {
        "x": test.x,
        "curve": test.y,
        "estimates": {epoch: result.estimates for epoch, result in shown.items()},
        "test.mse": {epoch: result.metrics["test.mse"] for epoch, result in shown.items()},
        "training_points": {"x": train.x, "y": train.y},
        "conventions": CONVENTIONS | {"estimates": "epoch → estimate at x with the widths after that epoch"},
    }
    figure = figures.estimates(test.x.numpy(), test.y.numpy(), panels, train.x.numpy(), train.y.numpy())
    save_figure(figure, path, numbers)


def _title(epoch: int, result: Regression, chosen: bool) -> str:
    when = f"after epoch {epoch}" if epoch else "before training: the fixed kernel"
    how = ", chosen by validation" if chosen else ""
    return f"{when}{how}, squared error to the curve {result.metrics['test.mse']:.3f}"


def _spread(epochs: list[int]) -> list[int]:
    """At most `_MOST_PANELS` of the epochs, the first and the last among them; those kept stand ever farther apart."""
    places = np.linspace(0, len(epochs) - 1, min(len(epochs), _MOST_PANELS)).round().astype(int)
    return [epochs[place] for place in places]


def _draw_wiggles(path: Path, points: Sampled, widths: Tensor, fixed_width: float) -> None:
    """An estimate is linear in the values, so it is that of the curve's own values and that of the noise, added."""
    train, test = points
    noise = train.y - curve(train.x)
    by_name = {"fixed": torch.tensor(fixed_width), "learned": widths}
    parts = {name: NadarayaWatson(train.x, noise, w)(test.x) for name, w in by_name.items()}
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
    save_figure(figures.wiggles(test.x.numpy(), lines, train.x.numpy(), noise.numpy()), path, numbers)


def _draw_kernels(path: Path, train: Points, widths: Tensor, fixed_width: float) -> None:
    numbers = {"keys": train.x, "widths": widths, "fixed_width": fixed_width, "conventions": CONVENTIONS}
    save_figure(figures.kernels(train.x.numpy(), widths.numpy(), fixed_width), path, numbers)


def _draw_weights(path: Path, points: Sampled, widths: Tensor, fixed_width: float) -> None:
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
    save_figure(figures.weight_maps(maps, queries.numpy(), keys.numpy()), path, numbers)


def _evenly(count: int) -> np.ndarray:
    """At most `_MOST_ROWS` of so many places, the first among them."""
    return np.unique(np.linspace(0, count, min(count, _MOST_ROWS), endpoint=False).astype(int))


def _draw_errors(
    path: Path, history: list[dict[str, Any]], found: Mapping[int, Regression], config: RegressionRun
) -> None:
    variance = config.data.noise**2
    steps = [float(epoch * config.data.passes) for epoch in found]
    metrics = [result.metrics for result in found.values()]
    lines: dict[str, tuple[list[float], list[float]]] = {
        "leave_one_out": (steps, [entry["train.mse_leave_one_out"] for entry in metrics]),
        "train": (steps, [entry["train.mse"] for entry in metrics]),
        "val": _series(history, "val.mse"),
        "test": (steps, [entry["test.mse"] + variance for entry in metrics]),
        "noise": ([steps[0], steps[-1]], [variance, variance]),
    }
    rule = {name: label for name, (label, _, _) in figures.ERRORS.items()} | {"lines": "steps, errors"}
    numbers = {"lines": lines, "history": history, "conventions": CONVENTIONS | rule}
    save_figure(figures.errors(lines), path, numbers)


def _series(history: list[dict[str, Any]], key: str) -> tuple[list[float], list[float]]:
    rows = [(record["step"], record[key]) for record in history if key in record]
    return [row[0] for row in rows], [row[1] for row in rows]


def model_card(run: Path, summary: dict[str, Any]) -> str:
    """Markdown: what was estimated, from what, and what was measured."""
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
        ("training", f"{summary['train.n_points']} points, {summary['steps']} steps, {summary['seconds']:.0f} s"),
        ("device, seed", f"{summary['device']}, {summary['seed']}"),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    pictures = "\n\n".join(f"![{name}](figures/{name}.png)" for name in _PICTURES)
    return (
        f"# Nadaraya–Watson kernel regression, one learned width a key\n\n| measured | |\n|---|---|\n{table}\n\n"
        "Training points have noise and so have errors at them and at the validation points; the test error is to the "
        "curve itself. Each training point was estimated from the others. Evaluate again with\n\n"
        f"    python eval.py --checkpoint {shlex.quote(str(run))}\n\n{pictures}\n"
    )
