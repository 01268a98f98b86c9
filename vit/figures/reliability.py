"""Whether a probability means what it says (DeGroot and Fienberg 1983; Guo et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import ArrayLike

from vit.figures.style import BLUE, GREY, ORANGE, empty_figure, style

_NUM_BINS = 15


def reliability(confidences: ArrayLike, correct: ArrayLike) -> Figure:
    """Accuracy against mean confidence in bins of equal mass, above the distribution of the confidences.

    confidences (n,): probability of the top-1 class; correct (n,): whether that class is the label.
    """
    confidences, correct = np.asarray(confidences, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    order = np.argsort(confidences, kind="stable")
    places = [part for part in np.array_split(order, _NUM_BINS) if len(part)]
    x = [float(confidences[part].mean()) for part in places]
    y = [float(correct[part].mean()) for part in places]
    with style():
        figure = empty_figure(4.2, 4.8)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
        upper.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle="--", label="perfect")
        _draw_gaps(upper, x, y)
        upper.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
        upper.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        upper.legend(loc="upper left")
        lower.hist(confidences, bins=25, range=(0, 1), color=BLUE, alpha=0.5)
        lower.set(xlabel="confidence", ylabel="images")
        lower.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def _draw_gaps(axes: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    axes.vlines(x, x, y, color=ORANGE, alpha=0.6, linewidth=1.5, label="gap", clip_on=False)
    axes.plot(x, y, color=BLUE, marker="o", markersize=4, linewidth=1, label="bins of equal mass", clip_on=False)
