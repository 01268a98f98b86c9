"""Similarity of position vectors, one tile a patch (ViT, figure 7, centre)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vit.figures.mosaic import centres, mosaic, span
from vit.figures.style import empty_figure, style

_GAP = 0.12
"""Between tiles, as a part of a tile."""
_MOST_HEIGHT = 8.0
"""Inches of all tiles."""


def position_similarity(
    tiles: ArrayLike, rows: Sequence[int], columns: Sequence[int], title: str = "", label: str = "cosine similarity"
) -> Figure:
    """`tiles[i, j]` (gh, gw) is the similarity of the patch in `rows[i]`, `columns[j]` to all patches."""
    values = np.asarray(tiles, dtype=np.float64)
    assert values.shape[:2] == (len(rows), len(columns)), f"tiles {values.shape} for {len(rows)}×{len(columns)} places"
    height, width = values.shape[2:]
    gap = max(1, round(_GAP * max(height, width)))
    with style():
        ratio = span(len(rows), height, gap) / span(len(columns), width, gap)
        side = min(4.6, _MOST_HEIGHT / ratio)
        figure = empty_figure(side + 1.1, max(1.9, side * ratio + 0.5))
        axes = figure.subplots()
        picture = axes.imshow(mosaic(values, gap), cmap="viridis", vmax=1, interpolation="nearest")
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_xticks(centres(len(columns), width, gap), [str(column + 1) for column in columns])
        axes.set_yticks(centres(len(rows), height, gap), [str(row + 1) for row in rows])
        axes.set(xlabel="patch column", ylabel="patch row", title=title)
        bar = figure.colorbar(picture, ax=axes, shrink=0.8, aspect=25, label=label)
        bar.outline.set_visible(False)
    return figure
