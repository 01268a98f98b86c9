"""Accuracy lost without each head, by its place and against other quantities of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from vit.figures.style import GREY, add_colorbar, as_floats, check_shape, empty_figure, style

_LABEL = "accuracy lost (points)"


def plot_head_ablation(
    lost: ArrayLike,
    quantities: Mapping[str, ArrayLike],
    *,
    interval: ArrayLike | None = None,
    blocks: Sequence[int] | None = None,
) -> Figure:
    """Draw the lost fractions `lost` (l, h) in percentage points: as a map, and against each of `quantities` (l, h).

    `interval` (2, l, h): the ends of each value's 95 % interval. The map's scale then ends no earlier than the widest
    of them, so that noise stays pale, and heads whose interval leaves out 0 have a dot. `blocks`: the number of each
    row's block, ascending; None: from 1 on.
    """
    points = 100 * as_floats(lost)
    ends = None if interval is None else 100 * as_floats(interval)
    if ends is not None:
        check_shape("interval", ends, (2, *points.shape), "two ends for each head")
    numbers = np.arange(1, len(points) + 1) if blocks is None else np.asarray(blocks)
    check_shape("blocks", numbers, (len(points),), "one number for each row")
    with style():
        height = max(2.8, min(6.0, 0.19 * len(points) + 1.2))
        figure = empty_figure(3.1 * (1 + len(quantities)), height)
        first, *others = figure.subplots(1, 1 + len(quantities), squeeze=False)[0]
        _draw_map(figure, first, points, ends)
        _label_blocks(first, numbers)
        scale = Normalize(numbers[0], max(numbers[-1], numbers[0] + 1))
        for axes, (name, values) in zip(others, quantities.items(), strict=True):
            _draw_against(axes, as_floats(values), points, ends, scale(numbers))
            axes.set(xlabel=name, ylabel=_LABEL if axes is others[0] else "")
        if others:
            bar = add_colorbar(figure, ScalarMappable(scale, "viridis"), others[-1], aspect=25, label="block")
            bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    return figure


def _draw_map(figure: Figure, axes: Axes, points: np.ndarray, ends: np.ndarray | None) -> None:
    blocks, heads = points.shape
    widest = 0.0 if ends is None else float((ends[1] - ends[0]).max()) / 2
    reach = max(float(np.abs(points).max()), widest, 1e-9)
    edges = (0.5, heads + 0.5, 0.5, blocks + 0.5)
    norm = TwoSlopeNorm(0, -reach, reach)
    image = axes.imshow(points, cmap="PuOr_r", norm=norm, origin="lower", extent=edges, aspect="auto")
    if ends is not None:
        sure = np.argwhere((ends[0] > 0) | (ends[1] < 0)) + 1
        axes.plot(sure[:, 1], sure[:, 0], ".", color="black", markersize=5)
    axes.grid(visible=False)
    axes.set(title=_LABEL, xlabel="head", ylabel="block", xlim=edges[:2], ylim=edges[2:])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    add_colorbar(figure, image, axes, aspect=25)


def _label_blocks(axes: Axes, blocks: np.ndarray) -> None:
    """The rows of the map by the numbers of their blocks."""
    axes.yaxis.set_major_formatter(lambda row, _: str(blocks[round(row) - 1]) if 1 <= row <= len(blocks) else "")


def _draw_against(
    axes: Axes, values: np.ndarray, points: np.ndarray, ends: np.ndarray | None, depths: ArrayLike
) -> None:
    """A dot for each head, in the colour of its block; `depths` (l,) from 0 to 1."""
    colors = colormaps["viridis"](np.asarray(depths)).repeat(points.shape[1], axis=0)
    if ends is not None:
        low, high = ends.reshape(2, -1)
        axes.vlines(values.ravel(), low, high, colors=colors, alpha=0.35 if points.size <= 60 else 0.2, linewidth=1.2)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.scatter(values.ravel(), points.ravel(), c=colors, s=14, zorder=3)
