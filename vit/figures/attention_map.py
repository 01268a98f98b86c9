"""Who attends to whom: weights as maps with a row for each query and a column for each key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike

from vit.figures.style import empty_figure, style

_MOST_NUMBERS = 12
"""Keys up to which the weights are written into the cells."""
_NUMBERED_CELL, _CELL = 0.42, 0.2
"""A cell's side in inches."""


def attention_map(
    weights: ArrayLike, queries: Sequence[str], keys: Sequence[str], titles: Sequence[str] = ("",)
) -> Figure:
    """Maps (k, n, m) side by side, one for each of k `titles`; a single map (n, m) needs none.

    Where there is room the weights are written into the cells; an exact 0, such as a masked key's, is left blank.
    """
    maps = np.asarray(weights, dtype=np.float64)
    maps = maps[None] if maps.ndim == 2 else maps
    sizes = len(titles), len(queries), len(keys)
    assert maps.shape == sizes, f"{maps.shape} weights for {sizes} titles, queries, keys"
    numbered, top = len(keys) <= _MOST_NUMBERS, float(maps.max())
    with style():
        cell = _NUMBERED_CELL if numbered else _CELL
        figure = empty_figure((cell * len(keys) + 0.9) * len(maps) + 0.9, 0.9 * cell * len(queries) + 1.2)
        panels = figure.subplots(1, len(maps), sharey=True, squeeze=False)[0]
        for axes, values, title in zip(panels, maps, titles, strict=True):
            picture = _draw(axes, values, top)
            axes.set_xticks(range(len(keys)), keys, rotation=90 if max(map(len, keys)) > 3 else 0)
            axes.set_title(title, fontsize=9)
            if numbered:
                _write_numbers(axes, values, top)
        panels[0].set_yticks(range(len(queries)), queries)
        panels[0].set_ylabel("query")
        bar = figure.colorbar(picture, ax=list(panels), shrink=0.7, aspect=22, label="weight")
        bar.outline.set_visible(False)
    return figure


def _draw(axes: Axes, values: np.ndarray, top: float) -> AxesImage:
    picture = axes.imshow(values, cmap="Blues", vmin=0, vmax=top, interpolation="nearest", aspect="auto")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel("key")
    return picture


def _write_numbers(axes: Axes, values: np.ndarray, top: float) -> None:
    for (row, column), weight in np.ndenumerate(values):
        if weight > 0:
            color = "white" if weight > 0.6 * top else "#404040"
            axes.text(column, row, f"{weight:.2f}".lstrip("0"), ha="center", va="center", fontsize=7, color=color)
