"""Validation accuracy of recipes against the time that they were trained, over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vit.config import check
from vit.figures.style import COLORS, empty_figure, style


def plot_accuracy_over_time(curves: Mapping[str, Sequence[Sequence[tuple[float, float]]]]) -> Figure:
    """Draw each recipe's mean over its runs as a line, with a band from the lowest run to the highest.

    `curves`: recipe → runs → (minutes of training, accuracy as a fraction) at every validation. The runs of a recipe
    are validated equally often, and a mean is of their minutes too. ValueError where they are not.
    """
    check(0 < len(curves) <= len(COLORS), "curves", len(curves), f"between 1 and {len(COLORS)} recipes can be drawn")
    with style():
        figure = empty_figure(6.4, 3.6)
        axes = figure.add_subplot()
        for (name, runs), color in zip(curves.items(), COLORS, strict=False):
            counts = sorted({len(run) for run in runs})
            check(len(counts) == 1, f"curves: {name}", counts, "its runs must be validated equally often")
            minutes, accuracy = np.moveaxis(np.array(runs, dtype=float), -1, 0)  # run validation, each
            seeds = f", {len(runs)} seeds" if len(runs) > 1 else ""
            last = accuracy[:, -1].mean()
            axes.plot(minutes.mean(0), accuracy.mean(0), color=color, label=f"{name}{seeds}: {100 * last:.1f} %")
            lowest, highest = accuracy.min(0), accuracy.max(0)
            axes.fill_between(minutes.mean(0), lowest, highest, color=color, alpha=0.25, linewidth=0)
        axes.set(xlabel="minutes of training", ylabel="validation accuracy")
        axes.set_xlim(left=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.legend(loc="lower right")
    return figure
