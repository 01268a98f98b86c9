"""A mosaic: many small arrays joined into one, because one image is drawn much faster than hundreds."""

from __future__ import annotations

import numpy as np


def mosaic_length(count: int, side: int, gap: int) -> int:
    """Length in cells of `count` tiles of `side` cells with gaps between them."""
    return count * side + (count - 1) * gap


def tile_centres(count: int, side: int, gap: int) -> np.ndarray:
    """Centre of each tile, in cells."""
    return np.arange(count) * (side + gap) + (side - 1) / 2


def mosaic(tiles: np.ndarray, gap: int) -> np.ndarray:
    """Join tiles (rows, columns, h, w) into one array, with NaN (which is not drawn) between them."""
    rows, columns, height, width = tiles.shape
    whole = np.full((mosaic_length(rows, height, gap), mosaic_length(columns, width, gap)), np.nan)
    for i in range(rows):
        for j in range(columns):
            top, left = i * (height + gap), j * (width + gap)
            whole[top : top + height, left : left + width] = tiles[i, j]
    return whole
