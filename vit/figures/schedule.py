"""The learning rate over a run that has not begun."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter

from vit.figures.style import PURPLE, count_axis, empty_figure, style


def schedule(images_seen: Sequence[float], lr: Sequence[float]) -> Figure:
    """The learning rate against images seen."""
    with style():
        figure = empty_figure(5.0, 2.8)
        axes = figure.add_subplot()
        axes.set_title("learning rate")
        axes.plot(images_seen, lr, color=PURPLE, marker="o" if len(lr) == 1 else None)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        count_axis(axes, "images seen")
    return figure
