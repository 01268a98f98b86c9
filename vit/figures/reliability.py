"""Reliability diagram (DeGroot and Fienberg 1983; Guo et al. 2017)."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import ArrayLike

from vit.figures.calibration import Curve
from vit.figures.style import BLUE, GREY, ORANGE, empty_figure, style


def plot_reliability(curve: Curve, confidences: ArrayLike) -> Figure:
    """Draw accuracy against mean confidence in bins of equal mass, above the distribution of the confidences.

    confidences (n,): probability of the top-1 class.
    """
    with style():
        figure = empty_figure(4.4, 5.0)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
        upper.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle="--", label="perfect")
        x, y = curve
        upper.vlines(x, x, y, color=ORANGE, alpha=0.6, linewidth=1.5, label="gap", clip_on=False)
        upper.plot(x, y, color=BLUE, marker="o", markersize=4, linewidth=1, label="bins of equal mass", clip_on=False)
        upper.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
        upper.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        figure.legend(*upper.get_legend_handles_labels(), loc="outside upper center", ncols=3)
        lower.hist(np.asarray(confidences), bins=25, range=(0, 1), color=BLUE, alpha=0.5)
        lower.set(xlabel="confidence", ylabel="images")
        lower.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure
