"""Effective receptive fields by depth (Raghu et al. 2021, figure 6)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from vit.figures.style import BLUE, GREY, add_colorbar, as_floats, empty_figure, panel_grid, style

_MAX_FIELDS = 12
_COLUMNS = 6
_SMALLEST = 1e-3


def plot_receptive_field(
    fields: ArrayLike, mean_distance: Sequence[float], uniform: float, title: str = "", unit: str = "pixels"
) -> Figure:
    """Draw at most twelve of the fields (l, H, W), each scaled to its own maximum and on a logarithmic scale of three
    decades; below them the mean distance by block, and that of a field that is the same everywhere.
    """
    values = as_floats(fields)
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), _MAX_FIELDS)).round().astype(int))
    columns = min(_COLUMNS, len(chosen))
    rows = -(-len(chosen) // columns)
    with style():
        figure = empty_figure(8.2, 1.05 * rows * values.shape[1] / values.shape[2] + 2.6)
        maps, curve = figure.subfigures(2, 1, squeeze=False, height_ratios=(rows * 1.05 + 0.4, 2.0))[:, 0]
        maps.suptitle(title, fontsize=10, x=0.02, ha="left")
        grid = panel_grid(maps, len(chosen), columns)
        for axes, place in zip(grid, chosen, strict=True):
            axes.set_axis_off()
            relative = np.maximum(values[place] / values[place].max(), _SMALLEST)
            image = axes.imshow(relative, cmap="viridis", norm=LogNorm(_SMALLEST, 1), interpolation="nearest")
            axes.set_title(f"block {place + 1}", fontsize=8, loc="center", pad=2)
        ticks = [_SMALLEST, 0.01, 0.1, 1]
        bar = add_colorbar(maps, image, maps.axes, aspect=18, shrink=0.9, ticks=ticks, label="gradient / its maximum")
        bar.ax.minorticks_off()
        bar.ax.set_yticklabels([f"{tick:g}" for tick in ticks])
        axes = curve.subplots()
        axes.plot(range(1, len(values) + 1), mean_distance, color=BLUE, marker="o", markersize=4)
        axes.axhline(uniform, color=GREY, linestyle="--", linewidth=1)
        axes.annotate("equal everywhere", (1, uniform), (0, 3), textcoords="offset points", color=GREY, fontsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))
        axes.set_ylim(bottom=0, top=1.15 * max(uniform, *mean_distance))
        axes.set_xlim(0.5, len(values) + 0.5)
        axes.set(xlabel="block", ylabel=f"mean distance ({unit})")
    return figure
