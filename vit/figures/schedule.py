"""Learning rate schedule of a planned run."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, MaxNLocator

from vit.figures.style import PURPLE, count_axis, empty_figure, style


def plot_schedule(samples_seen: Sequence[float], lr: Sequence[float], unit: str = "images") -> Figure:
    """Draw the learning rate against the samples seen, which are called `unit`."""
    with style():
        figure = empty_figure(5.0, 2.8)
        axes = figure.add_subplot()
        axes.set_title("learning rate")
        axes.plot(samples_seen, lr, color=PURPLE, marker="o" if len(lr) == 1 else None)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        count_axis(axes, f"{unit} seen")
    return figure
