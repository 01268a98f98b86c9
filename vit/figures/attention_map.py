"""Attention weights as maps with a row for each query and a column for each key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vit.figures.style import add_colorbar, as_floats, check_shape, empty_figure, hide_frame, style, write_in_cell

_MAX_KEYS_WITH_NUMBERS = 12
"""The weights are written into the cells up to this many keys."""
_NUMBERED_CELL, _CELL = 0.42, 0.2
"""A cell's side in inches."""


def plot_attention_map(
    weights: ArrayLike, queries: Sequence[str], keys: Sequence[str], titles: Sequence[str] = ("",)
) -> Figure:
    """Draw maps (k, n, m) side by side, one for each of k `titles`; a single map (n, m) needs none.

    Where there is room the weights are written into the cells; an exact 0, such as a masked key's, is left blank.
    """
    maps = as_floats(weights)
    maps = maps[None] if maps.ndim == 2 else maps
    sizes = len(titles), len(queries), len(keys)
    check_shape("weights", maps, sizes, "titles, queries, keys")
    numbered, top = len(keys) <= _MAX_KEYS_WITH_NUMBERS, float(maps.max())
    with style():
        side = _NUMBERED_CELL if numbered else _CELL
        figure = empty_figure((side * len(keys) + 0.9) * len(maps) + 0.9, 0.9 * side * len(queries) + 1.2)
        panels = figure.subplots(1, len(maps), sharey=True, squeeze=False)[0]
        for axes, values, title in zip(panels, maps, titles, strict=True):
            image = axes.imshow(values, cmap="Blues", vmin=0, vmax=top, interpolation="nearest", aspect="auto")
            hide_frame(axes)
            axes.set_xlabel("key")
            axes.set_xticks(range(len(keys)), keys, rotation=90 if max(map(len, keys)) > 3 else 0)
            axes.set_title(title, fontsize=9)
            for cell, weight in np.ndenumerate(values):
                if numbered and weight > 0:
                    write_in_cell(axes, cell, f"{weight:.2f}".lstrip("0"), on_dark=weight > 0.6 * top, fontsize=7)
        panels[0].set_yticks(range(len(queries)), queries)
        panels[0].set_ylabel("query")
        add_colorbar(figure, image, list(panels), shrink=0.7, aspect=22, label="weight")
    return figure
