"""Who attends to whom in each head of a text model, one sentence: a row of maps a layer, a column a head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vit.figures.mosaic import centres, mosaic, span
from vit.figures.style import style

_CELL, _MOST_WIDTH, _READABLE = 0.12, 12.0, 0.075
"""Inches of a cell where there is room; of all maps; of a cell from which on tokens are written."""
_LETTER, _MARGIN, _TOP = 0.042, 0.15, 0.35
"""Inches of a letter of a token; beside the longest token; above."""
_GAP = 1


def text_heads(maps: ArrayLike, queries: Sequence[str], keys: Sequence[str], title: str = "") -> Figure:
    """`maps` (l, h, n, m) of n `queries` (down) and m `keys` (across), all on one scale from 0 to 1."""
    values = np.asarray(maps, dtype=np.float64)
    rows, columns, n, m = values.shape
    assert (n, m) == (len(queries), len(keys)), f"{values.shape} weights for {len(queries)} queries, {len(keys)} keys"
    across, down = span(columns, m, _GAP), span(rows, n, _GAP)
    cell = min(_CELL, _MOST_WIDTH / across)
    left, bottom = (_LETTER * max(map(len, tokens)) + _MARGIN for tokens in (queries, keys))
    size = (across * cell + left + 0.2, down * cell + bottom + _TOP)
    with style():
        figure = Figure(figsize=size)
        axes = figure.add_axes((left / size[0], bottom / size[1], across * cell / size[0], down * cell / size[1]))
        axes.imshow(mosaic(values, _GAP), cmap="Blues", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
        axes.set_facecolor("#B0B0B0")  # between the maps, whose own lowest value is white
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelsize=5)
        if cell >= _READABLE:
            axes.set_xticks(_cells(columns, m), list(keys) * columns, rotation=90)
            axes.set_yticks(_cells(rows, n), list(queries) * rows)
        else:
            axes.set(xticks=[], yticks=[])
        _number(axes, columns, rows, n, m)
        axes.set_title(title, pad=16)
    return figure


def _cells(count: int, side: int) -> np.ndarray:
    return (np.arange(count)[:, None] * (side + _GAP) + np.arange(side)).ravel()


def _number(axes: Axes, columns: int, rows: int, n: int, m: int) -> None:
    """Heads above the maps, layers to their right."""
    for head, x in enumerate(centres(columns, m, _GAP)):
        axes.annotate(f"head {head + 1}", (x, -0.5), (0, 3), textcoords="offset points", ha="center", fontsize=6.5)
    for layer, y in enumerate(centres(rows, n, _GAP)):
        end = span(columns, m, _GAP) - 0.5
        axes.annotate(
            f"layer {layer + 1}", (end, y), (3, 0), textcoords="offset points", va="center", rotation=90, fontsize=6.5
        )
