"""Reliability diagrams of several models, before and after temperature scaling (Guo et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, PercentFormatter

from vit.figures.style import BLUE, GREY, ORANGE, empty_figure, panel_grid, shorten, style

_MAX_NAME = 34


class Curve(NamedTuple):
    """Mean confidence and accuracy of bins of equal mass, both (m,)."""

    confidence: np.ndarray
    accuracy: np.ndarray


class Panel(NamedTuple):
    name: str
    before: Curve
    after: Curve | None
    """After temperature scaling; None where no temperature was fitted."""


def plot_calibration(panels: Sequence[Panel]) -> Figure:
    """Draw accuracy against confidence, one panel for each model."""
    columns = min(len(panels), 4)
    rows = -(-len(panels) // columns)
    with style():
        figure = empty_figure(max(2.4 * columns, 4.2), 2.5 * rows + 0.35)
        figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr, call-arg]
        grid = panel_grid(figure, len(panels), columns, sharex=True, sharey=True)
        for axes, panel in zip(grid, panels, strict=True):
            axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle="--")
            for curve, color, label in ((panel.before, ORANGE, "as it is"), (panel.after, BLUE, "with temperature")):
                if curve is not None:
                    axes.scatter(*curve, s=12, color=color, alpha=0.7, label=label, clip_on=False, zorder=3)
            axes.set(xlim=(0, 1), ylim=(0, 1.02))
            axes.set_title(shorten(panel.name, _MAX_NAME), fontsize=8)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
                axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        figure.supxlabel("confidence", fontsize=9)
        figure.supylabel("accuracy", fontsize=9)
        most = max((axes.get_legend_handles_labels() for axes in grid), key=lambda found: len(found[0]))
        figure.legend(*most, loc="outside upper right", ncols=2)
    return figure
