"""Validation accuracy of recipes against the time that they were trained, over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vit.config import check
from vit.figures.style import COLORS, empty_figure, style

Curves = Mapping[str, Sequence[Sequence[tuple[float, float]]]]
"""Recipe → runs → (minutes of training, accuracy as a fraction) at every validation."""


def plot_accuracy_over_time(curves: Curves, *, close_up: float | None = None) -> Figure:
    """Draw each recipe's mean over its runs as a line, with a band from the lowest run to the highest.

    The runs of a recipe are validated equally often, and a mean is of their minutes too. `close_up`: a second panel
    shows the highest accuracies again, so much of them (a fraction). ValueError for runs that cannot be averaged.
    """
    check(0 < len(curves) <= len(COLORS), "curves", len(curves), f"between 1 and {len(COLORS)} recipes can be drawn")
    check(close_up is None or 0 < close_up < 1, "close_up", close_up, "it must be between 0 and 1")
    arrays = {name: _validations(name, runs) for name, runs in curves.items()}
    panels = 1 if close_up is None else 2
    with style():
        figure = empty_figure(6.4 if panels == 1 else 10.4, 3.6)
        axes = figure.add_subplot(1, panels, 1)
        _draw(axes, arrays)
        axes.set_xlim(left=0)
        axes.set_ylabel("validation accuracy")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.legend(loc="lower right")
        if close_up is not None:
            axes = figure.add_subplot(1, panels, 2)
            _draw(axes, arrays)
            highest = max(runs[..., 1].mean(0).max() for runs in arrays.values())
            lowest = highest - close_up
            reached = min(_first_minute(runs, lowest) for runs in arrays.values())
            axes.set(title=f"the highest {100 * close_up:g} percentage points", ylim=(lowest, highest + close_up / 20))
            axes.set_xlim(left=reached)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def _validations(name: str, runs: Sequence[Sequence[tuple[float, float]]]) -> np.ndarray:
    """float64 (runs, validations, 2): minutes and accuracy."""
    counts = sorted({len(run) for run in runs})
    check(len(counts) == 1, f"curves: {name}", counts, "its runs must be validated equally often")
    return np.array(runs, dtype=float)


def _first_minute(runs: np.ndarray, accuracy: float) -> float:
    """Minutes of training when the mean over runs reaches an accuracy; infinite where it does not."""
    minutes, means = np.moveaxis(runs.mean(0), -1, 0)
    return float(minutes[means >= accuracy].min(initial=np.inf))


def _draw(axes: Axes, arrays: Mapping[str, np.ndarray]) -> None:
    for (name, runs), color in zip(arrays.items(), COLORS, strict=False):
        minutes, accuracy = runs[..., 0].mean(0), runs[..., 1]
        seeds = f", {len(runs)} seeds" if len(runs) > 1 else ""
        last = f"{100 * accuracy[:, -1].mean():.1f} %"
        axes.plot(minutes, accuracy.mean(0), color=color, label=f"{name}{seeds}: {last}")
        axes.fill_between(minutes, accuracy.min(0), accuracy.max(0), color=color, alpha=0.25, linewidth=0)
    axes.set_xlabel("minutes of training")
