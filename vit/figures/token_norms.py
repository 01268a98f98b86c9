"""Norms of the tokens by depth, and the patches whose norms lie apart (Darcet et al. 2024, figures 3 and 4)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike

from vit.figures.style import BLUE, GREY, ORANGE, RED, add_colorbar, as_floats, empty_figure, hide_frame, style

_JOINED = 5
"""Bins of the data in one of the picture."""


def plot_token_norms(
    counts: ArrayLike,
    edges: ArrayLike,
    others: Mapping[str, ArrayLike],
    outlier_share: ArrayLike,
    outlier_map: ArrayLike,
    block: int,
) -> Figure:
    """Draw the distribution of norms (l, bins) between `edges` by block with the mean norms of `others` (l,) or (l, r)
    as lines; the share of outliers (l,); and at each place (gh, gw) after `block` (from 1) the share of images.
    """
    share = as_floats(outlier_share)
    places = np.arange(1, len(share) + 1)
    with style():
        figure = empty_figure(10.4, 3.2)
        norms, outliers, where = figure.subplots(1, 3, width_ratios=(1.35, 1.0, 1.0))
        _draw_distribution(norms, as_floats(counts), as_floats(edges))
        for (name, values), color in zip(others.items(), (ORANGE, RED), strict=False):
            curves = as_floats(values).reshape(len(share), -1)
            if curves.size and not np.isnan(curves).all():
                lines = norms.plot(places, curves, color=color, lw=1.3, marker="o", markersize=2.5)
                lines[0].set_label(name)
        if norms.lines:
            norms.legend(loc="upper left", bbox_to_anchor=(-0.05, -0.2), ncols=2)
        outliers.plot(places, share, color=BLUE, marker="o", markersize=3)
        outliers.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
        outliers.set(title="outlying patches", xlabel="block")
        outliers.set_ylim(0, max(1.1 * float(share.max()), 0.01))
        for axes in (norms, outliers):
            axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
            axes.set_xlim(0.5, len(share) + 0.5)
        _draw_places(figure, where, as_floats(outlier_map), block)
    return figure


def _draw_distribution(axes: Axes, counts: np.ndarray, edges: np.ndarray) -> None:
    """Each block's share of patches by norm, on a logarithmic scale, which shows single outliers."""
    used = np.flatnonzero(counts.sum(axis=0))
    first, last = used[0] // _JOINED * _JOINED, -(-(used[-1] + 1) // _JOINED) * _JOINED
    joined = counts[:, first:last].reshape(len(counts), -1, _JOINED).sum(axis=2)
    shares = joined / joined.sum(axis=1, keepdims=True)
    blocks = np.arange(len(counts) + 1) + 0.5
    least, most = max(float(shares[shares > 0].min()), 1e-6), float(shares.max())
    least = min(least, most / 10)  # else the bar of a few shares would have no extent, or no tick on it
    norm = LogNorm(least, most)
    image = axes.pcolormesh(blocks, edges[first : last + 1 : _JOINED], np.ma.masked_equal(shares, 0).T, norm=norm)
    axes.grid(visible=False)
    axes.set(title="norms", xlabel="block", ylabel="Euclidean norm of a token", yscale="log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    figure = axes.get_figure(root=True)
    assert figure is not None
    bar = add_colorbar(figure, image, axes, aspect=25, label="share of the patches")
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if most < 200 * least else (1,)))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    bar.ax.minorticks_off()


def _draw_places(figure: Figure, axes: Axes, values: np.ndarray, block: int) -> None:
    axes.set(xticks=[], yticks=[])
    hide_frame(axes)
    if not values.any():  # a map of one colour, and the scale beside it, would say nothing
        axes.set_title("where")
        axes.text(0.5, 0.5, "no outlying patches", color=GREY, ha="center", va="center", transform=axes.transAxes)
        return
    image = axes.imshow(values, cmap="viridis", vmin=0, vmax=max(float(values.max()), 0.01), interpolation="nearest")
    axes.set_title(f"where, after block {block}")
    bar = add_colorbar(figure, image, axes, shrink=0.85, aspect=20, label="share of the images")
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
