"""Accuracy lost without each head: where the head sits, how far it looks, how widely it spreads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from vit.figures.style import GREY, empty_figure, style


def head_ablation(lost: ArrayLike, quantities: Mapping[str, ArrayLike]) -> Figure:
    """`lost` (l, h) as parts of 1, drawn in percentage points: a map, then against each of `quantities` (l, h)."""
    points = 100 * np.asarray(lost, dtype=np.float64)
    layers, heads = points.shape
    reach = max(float(np.abs(points).max()), 1e-9)
    with style():
        figure = empty_figure(2.9 * (1 + len(quantities)), max(2.6, min(6.0, 0.19 * layers + 1.1)))
        panels = figure.subplots(1, 1 + len(quantities), squeeze=False)[0]
        first, *others = panels
        edges = (0.5, heads + 0.5, 0.5, layers + 0.5)
        norm = TwoSlopeNorm(0, -reach, reach)
        picture = first.imshow(points, cmap="PuOr_r", norm=norm, origin="lower", extent=edges, aspect="auto")
        first.grid(visible=False)
        first.set(xlabel="head", ylabel="block", title="points lost")
        for axis in (first.xaxis, first.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
        figure.colorbar(picture, ax=first, aspect=25).outline.set_visible(False)
        depth = np.repeat(np.arange(1, layers + 1), heads)
        for axes, (name, values) in zip(others, quantities.items(), strict=True):
            axes.axhline(0, color=GREY, linewidth=0.8)
            dots = axes.scatter(
                np.asarray(values).ravel(), points.ravel(), c=depth, cmap="viridis", vmin=1, vmax=max(layers, 2), s=14
            )
            axes.set(xlabel=name, ylabel="points lost" if axes is others[0] else "")
        if others:
            bar = figure.colorbar(dots, ax=others[-1], aspect=25, label="block")
            bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
            bar.outline.set_visible(False)
    return figure
