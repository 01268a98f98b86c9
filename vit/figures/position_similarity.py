"""Similarity of position embeddings, a tile for each patch (ViT, figure 7, centre)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vit.config import check
from vit.figures.mosaic import mosaic, mosaic_length, tile_centres
from vit.figures.style import add_colorbar, as_floats, empty_figure, hide_frame, style

_GAP = 0.12  # between tiles, as a fraction of a tile
_MAX_HEIGHT = 8.0  # inches of all tiles


def plot_position_similarity(
    tiles: ArrayLike, rows: Sequence[int], columns: Sequence[int], title: str = "", label: str = "cosine similarity"
) -> Figure:
    """Draw `tiles[i, j]` (gh, gw), the similarity of the patch at `rows[i]`, `columns[j]` to all patches."""
    values = as_floats(tiles)
    fits = values.ndim == 4 and values.shape[:2] == (len(rows), len(columns))
    check(
        fits,
        "tiles",
        values.shape,
        f"they must be {len(rows)} × {len(columns)} × gh × gw, as there are rows and columns",
    )
    height, width = values.shape[2:]
    gap = max(1, round(_GAP * max(height, width)))
    with style():
        ratio = mosaic_length(len(rows), height, gap) / mosaic_length(len(columns), width, gap)
        side = min(4.6, _MAX_HEIGHT / ratio)
        figure = empty_figure(side + 1.1, max(1.9, side * ratio + 0.5))
        axes = figure.subplots()
        image = axes.imshow(mosaic(values, gap), cmap="viridis", vmax=1, interpolation="nearest")
        hide_frame(axes)
        axes.set_xticks(tile_centres(len(columns), width, gap), [str(column + 1) for column in columns])
        axes.set_yticks(tile_centres(len(rows), height, gap), [str(row + 1) for row in rows])
        axes.set(xlabel="patch column", ylabel="patch row", title=title)
        add_colorbar(figure, image, axes, shrink=0.8, aspect=25, label=label)
    return figure
