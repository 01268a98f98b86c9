"""A quantity of every attention head: as dots above their blocks, or sorted within each block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from vit.config import check
from vit.figures.style import BLUE, GREY, ORANGE, add_colorbar, as_floats, empty_figure, panel_grid, style

_PER_BLOCK, _PER_HEAD = 0.2, 0.16  # inches of width


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadValues:
    """The quantity drawn in one panel."""

    values: ArrayLike
    """Blocks × heads."""
    label: str
    """The axis label, with the unit."""
    interval: ArrayLike | None = None
    """The ends of each value's interval, (2, blocks, heads); NaN: none. What lies outside [0, `largest`] is cut off."""
    largest: float = math.inf
    """The greatest possible value, as 1 of a weight; the least is 0."""
    reference: float | None = None
    reference_label: str = ""


def plot_heads_by_depth(panels: Sequence[HeadValues], titles: Sequence[str] = ("",)) -> Figure:
    """Draw a dot for each head above its block (ViT, figure 7 right), and the block's mean as a line.

    Up to three panels stand side by side, four in a square, six in two rows.
    """
    fits = len(panels) == len(titles) <= 6
    check(fits, "panels", len(panels), f"there are {len(titles)} titles; give a title for each, at most 6")
    depth = np.asarray(panels[0].values).shape[0]
    width = max(4.4 if len(panels) == 1 else 3.4, 1.3 + _PER_BLOCK * depth)
    with style():
        columns = 2 if len(panels) == 4 else min(len(panels), 3)
        rows = -(-len(panels) // columns)
        figure = empty_figure(width * columns, 3.0 * rows + 0.3)
        figure.get_layout_engine().set(wspace=0.05)  # type: ignore[union-attr, call-arg]
        grid = panel_grid(figure, len(panels), columns)
        for axes, panel, title in zip(grid, panels, titles, strict=True):
            _draw_dots(axes, panel)
            axes.set_title(title)
            _finish(axes, panel)
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), handlelength=1.6)
    return figure


def _draw_dots(axes: Axes, panel: HeadValues) -> None:
    values = as_floats(panel.values)  # l h
    depth, num_heads = values.shape
    shifts = np.linspace(-0.28, 0.28, num_heads) if num_heads > 1 else np.zeros(1)
    places = np.arange(1, depth + 1)[:, None] + shifts  # l h
    if panel.interval is not None:
        low, high = _ends(panel)
        axes.vlines(places.ravel(), low.ravel(), high.ravel(), color=BLUE, alpha=0.4, lw=0.8)
    size = 16 if depth * num_heads <= 200 else 8
    axes.scatter(places.ravel(), values.ravel(), s=size, color=BLUE, alpha=0.8, linewidths=0, label="a head", zorder=3)
    axes.plot(places.mean(axis=1), values.mean(axis=1), color=ORANGE, lw=1.2, label="mean of the block", zorder=2)
    axes.set_xlim(0.4, depth + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.set_xlabel("block")


def plot_sorted_heads(panels: Sequence[HeadValues], titles: Sequence[str] = ("",)) -> Figure:
    """Draw a line for each block through its heads, whose values ascend (Raghu et al. 2021, figure 3).

    Panels of several models stand side by side on one scale.
    """
    check(len(panels) == len(titles), "panels", len(panels), f"there are {len(titles)} titles; give a title for each")
    most_heads = max(np.asarray(panel.values).shape[1] for panel in panels)
    scale = Normalize(1, max(2, *(len(np.asarray(panel.values)) for panel in panels)))
    with style():
        width = max(4.0, 1.4 + _PER_HEAD * most_heads)
        figure = empty_figure(width * len(panels) + 0.8, 3.3)
        grid = panel_grid(figure, len(panels), len(panels), sharey=True)
        for axes, panel, title in zip(grid, panels, titles, strict=True):
            _draw_lines(axes, panel, scale)
            axes.set_title(title)
            _finish(axes, panel)
        for axes in grid[1:]:
            axes.set_ylabel("")
        grid[0].set_ylim(0, max(_top(panel) for panel in panels))
        if panels[0].reference is not None:
            figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", handlelength=1.6)
        bar = add_colorbar(figure, ScalarMappable(scale, "viridis"), grid, label="block", aspect=24)
        bar.locator = MaxNLocator(nbins=8, integer=True)
    return figure


def _draw_lines(axes: Axes, panel: HeadValues, scale: Normalize) -> None:
    values = as_floats(panel.values)  # l h
    is_sorted = bool((np.diff(values, axis=1) >= 0).all())
    check(is_sorted, "panels", values.shape, "the heads of a block are not sorted; sort the values of each row")
    ends = None if panel.interval is None else _ends(panel)  # 2 l h
    places = np.arange(1, values.shape[1] + 1)
    for block, heads in enumerate(values):
        color = colormaps["viridis"](scale(block + 1))
        axes.plot(places, heads, color=color, lw=1.1, marker="o", markersize=3)
        if ends is not None:
            axes.vlines(places, ends[0, block], ends[1, block], color=color, alpha=0.6, lw=2.2)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.set_xlabel("heads of a block, sorted")


def _ends(panel: HeadValues) -> np.ndarray:
    """The ends of the intervals, 2 l h, within what is possible."""
    return np.clip(as_floats(panel.interval), 0, panel.largest)


def _finish(axes: Axes, panel: HeadValues) -> None:
    """Draw the reference line and let the y axis begin at 0 and end above every value; a wide interval may leave it."""
    if panel.reference is not None:
        axes.axhline(panel.reference, color=GREY, lw=1.0, ls=(0, (5, 3)), label=panel.reference_label)
    axes.set_ylim(0, _top(panel))
    axes.set_ylabel(panel.label)


def _top(panel: HeadValues) -> float:
    return 1.08 * max(float(np.asarray(panel.values).max()), panel.reference or 0.0) or 1.0
