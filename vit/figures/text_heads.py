"""Attention of each head of a text model for one sentence: a row of maps for each block, a column for each head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vit.config import check
from vit.figures.mosaic import mosaic, mosaic_length, tile_centres
from vit.figures.style import as_floats, hide_frame, style

_CELL, _MAX_WIDTH, _READABLE = 0.12, 12.0, 0.075  # inches of a cell, of all maps, of a cell with a readable label
_LETTER, _MARGIN, _TOP = 0.042, 0.15, 0.35  # inches of a letter, beside the longest token, above the maps
_GAP = 1  # cells between maps


def plot_text_heads(maps: ArrayLike, queries: Sequence[str], keys: Sequence[str], title: str = "") -> Figure:
    """Draw `maps` (l, h, n, m) of n `queries` (down) and m `keys` (across), all on one scale from 0 to 1."""
    values = as_floats(maps)
    fits = values.ndim == 4 and values.shape[2:] == (len(queries), len(keys))
    check(fits, "maps", values.shape, f"they must be l × h × {len(queries)} queries × {len(keys)} keys")
    rows, columns, n, m = values.shape
    across, down = mosaic_length(columns, m, _GAP), mosaic_length(rows, n, _GAP)
    cell = min(_CELL, _MAX_WIDTH / across)
    left, bottom = (_LETTER * max(map(len, tokens)) + _MARGIN for tokens in (queries, keys))
    size = (across * cell + left + 0.2, down * cell + bottom + _TOP)
    with style():
        figure = Figure(figsize=size)
        axes = figure.add_axes((left / size[0], bottom / size[1], across * cell / size[0], down * cell / size[1]))
        axes.imshow(mosaic(values, _GAP), cmap="Blues", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
        axes.set_facecolor("#B0B0B0")  # shows between the maps, whose lowest value is white
        hide_frame(axes)
        axes.tick_params(labelsize=5)
        if cell >= _READABLE:
            axes.set_xticks(_cells(columns, m), list(keys) * columns, rotation=90)
            axes.set_yticks(_cells(rows, n), list(queries) * rows)
        else:
            axes.set(xticks=[], yticks=[])
        options: Any = {"textcoords": "offset points", "fontsize": 6.5}
        for head, x in enumerate(tile_centres(columns, m, _GAP)):
            axes.annotate(f"head {head + 1}", (x, -0.5), (0, 3), ha="center", **options)
        for block, y in enumerate(tile_centres(rows, n, _GAP)):
            axes.annotate(f"block {block + 1}", (across - 0.5, y), (3, 0), va="center", rotation=90, **options)
        axes.set_title(title, pad=16)
    return figure


def _cells(count: int, side: int) -> np.ndarray:
    return (np.arange(count)[:, None] * (side + _GAP) + np.arange(side)).ravel()
