"""Whether probabilities mean what they say, model beside model, before and after a temperature (Guo et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vit.figures.style import BLUE, GREY, ORANGE, empty_figure, style

NUM_BINS = 15
_LONGEST_NAME = 34


class Curve(NamedTuple):
    """Bins of equal width that hold samples: mean confidence, accuracy and number of samples of each, all (m,)."""

    confidence: np.ndarray
    accuracy: np.ndarray
    counts: np.ndarray


class Panel(NamedTuple):
    name: str
    before: Curve
    after: Curve | None
    """With the temperature; None where none was fitted."""


def equal_width_curve(confidences: np.ndarray, correct: np.ndarray) -> Curve:
    """Samples (n,) in 15 bins (i/15, (i+1)/15] of the confidence."""
    bins = np.clip(np.ceil(confidences * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
    counts = np.bincount(bins, minlength=NUM_BINS)
    filled = counts > 0
    sums = (np.bincount(bins, weights=values, minlength=NUM_BINS)[filled] for values in (confidences, correct))
    confidence, accuracy = (total / counts[filled] for total in sums)
    return Curve(confidence, accuracy, counts[filled])


def calibration(panels: Sequence[Panel]) -> Figure:
    """Accuracy against confidence, one panel a model; a dot's area grows with its samples."""
    columns = min(len(panels), 4)
    rows = math.ceil(len(panels) / columns)
    with style():
        figure = empty_figure(max(2.3 * columns, 4.2), 2.5 * rows + 0.35)
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, panel in zip(grid.flat, panels, strict=False):
            axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle="--")
            _draw(axes, panel.before, ORANGE, "as it is")
            if panel.after is not None:
                _draw(axes, panel.after, BLUE, "with temperature")
            axes.set(xlim=(0, 1), ylim=(0, 1.02))
            axes.set_title(_short(panel.name), fontsize=8)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        figure.supxlabel("confidence", fontsize=9)
        figure.supylabel("accuracy", fontsize=9)
        most = max((axes.get_legend_handles_labels() for axes in grid.flat), key=lambda found: len(found[0]))
        figure.legend(*most, loc="outside upper right", ncols=2)
    return figure


def _draw(axes: Axes, curve: Curve, color: str, label: str) -> None:
    sizes = 6 + 90 * curve.counts / curve.counts.sum()
    axes.scatter(
        curve.confidence, curve.accuracy, s=sizes, color=color, alpha=0.7, label=label, clip_on=False, zorder=3
    )


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
