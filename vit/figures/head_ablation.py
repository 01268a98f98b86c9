"""Accuracy lost without each head, by its place and against other quantities of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from vit.figures.style import GREY, add_colorbar, as_floats, empty_figure, style


def plot_head_ablation(lost: ArrayLike, quantities: Mapping[str, ArrayLike]) -> Figure:
    """Draw the lost fractions `lost` (l, h) in percentage points: as a map, and against each of `quantities` (l, h)."""
    points = 100 * as_floats(lost)
    layers, heads = points.shape
    reach = max(float(np.abs(points).max()), 1e-9)
    with style():
        figure = empty_figure(2.9 * (1 + len(quantities)), max(2.6, min(6.0, 0.19 * layers + 1.1)))
        first, *others = figure.subplots(1, 1 + len(quantities), squeeze=False)[0]
        edges = (0.5, heads + 0.5, 0.5, layers + 0.5)
        norm = TwoSlopeNorm(0, -reach, reach)
        image = first.imshow(points, cmap="PuOr_r", norm=norm, origin="lower", extent=edges, aspect="auto")
        first.grid(visible=False)
        first.set(xlabel="head", ylabel="block", title="points lost")
        for axis in (first.xaxis, first.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
        add_colorbar(figure, image, first, aspect=25)
        depth = np.repeat(np.arange(1, layers + 1), heads)
        for axes, (name, values) in zip(others, quantities.items(), strict=True):
            axes.axhline(0, color=GREY, linewidth=0.8)
            dots = axes.scatter(
                np.asarray(values).ravel(), points.ravel(), c=depth, cmap="viridis", vmin=1, vmax=max(layers, 2), s=14
            )
            axes.set(xlabel=name, ylabel="points lost" if axes is others[0] else "")
        if others:
            bar = add_colorbar(figure, dots, others[-1], aspect=25, label="block")
            bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    return figure
