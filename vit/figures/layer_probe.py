"""Accuracy of a linear probe by depth (Raghu et al. 2021, figure 13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from vit.config import check
from vit.figures.style import BLUE, GREEN, ORANGE, PURPLE, empty_figure, style

_COLORS = (BLUE, ORANGE, GREEN, PURPLE)


def plot_layer_probe(accuracy: Mapping[str, Sequence[float]], title: str = "") -> Figure:
    """Draw a line for each kind of features that a probe reads, a point for each block."""
    check(len(accuracy) <= len(_COLORS), "accuracy", len(accuracy), f"at most {len(_COLORS)} lines can be told apart")
    with style():
        figure = empty_figure(4.6, 2.9)
        axes = figure.subplots()
        for (name, values), color in zip(accuracy.items(), _COLORS, strict=False):
            axes.plot(range(1, len(values) + 1), values, color=color, marker="o", markersize=4, label=name)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlim(0.5, max(map(len, accuracy.values())) + 0.5)
        axes.set(xlabel="block", ylabel="accuracy of a linear probe", title=title)
        axes.legend()
    return figure
