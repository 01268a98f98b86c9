"""Many small arrays in one, with nothing between them: drawn as one image, hundreds of tiles cost what one costs."""

from __future__ import annotations

import numpy as np


def span(count: int, side: int, gap: int) -> int:
    """Cells that `count` tiles of `side` cells take, with gaps."""
    return count * side + (count - 1) * gap


def centres(count: int, side: int, gap: int) -> np.ndarray:
    """The middle of each tile, in cells."""
    return np.arange(count) * (side + gap) + (side - 1) / 2


def mosaic(tiles: np.ndarray, gap: int) -> np.ndarray:
    """Tiles (rows, columns, h, w) in one array with NaN between them, which is not drawn."""
    rows, columns, height, width = tiles.shape
    whole = np.full((span(rows, height, gap), span(columns, width, gap)), np.nan)
    for i in range(rows):
        for j in range(columns):
            top, left = i * (height + gap), j * (width + gap)
            whole[top : top + height, left : left + width] = tiles[i, j]
    return whole
