"""Maps of the patches of several images, below the images: components as colours, or likeness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from vit.figures.style import GREY, RED, add_colorbar, as_floats, empty_figure, hide_frame, style

_SIDE = 1.25  # inches of an image's width
_BACKGROUND = 1.0  # white, which no component is


def plot_patch_components(images: ArrayLike, components: ArrayLike, foreground: ArrayLike) -> Figure:
    """Draw images (b, H, W, 3) uint8 above their patches' colours (b, gh, gw, 3) from 0 to 1, and below these the
    foreground's, which are NaN elsewhere (Oquab et al. 2023, figure 1)."""
    pictures = np.asarray(images)
    own = np.nan_to_num(as_floats(foreground), nan=_BACKGROUND)
    with style():
        figure, rows = _rows(pictures, ("image", "all patches", "foreground"), 0.0)
        for column, picture in enumerate(pictures):
            _show(rows[0][column], picture)
            for axes, colours in ((rows[1][column], as_floats(components)), (rows[2][column], own)):
                axes.imshow(colours[column], interpolation="nearest", vmin=0, vmax=1)
    return figure


def plot_patch_similarity(images: ArrayLike, similarity: ArrayLike, query: tuple[int, int]) -> Figure:
    """Draw images (b, H, W, 3) uint8 with the patch `query` (row, column) framed above its cosines (b, gh, gw)."""
    pictures, values = np.asarray(images), as_floats(similarity)
    height, width = pictures.shape[1] / values.shape[1], pictures.shape[2] / values.shape[2]
    with style():
        figure, rows = _rows(pictures, ("image", "cosine"), 0.7)
        for column, picture in enumerate(pictures):
            _show(rows[0][column], picture)
            corner = (query[1] * width - 0.5, query[0] * height - 0.5)  # the centre of pixel 0 is at 0
            frame = Rectangle(corner, width, height, fill=False, edgecolor=RED, linewidth=1.5)
            rows[0][column].add_patch(frame)
            shown = rows[1][column].imshow(
                values[column], cmap="viridis", vmin=min(0.0, values.min()), vmax=1, interpolation="nearest"
            )
        add_colorbar(figure, shown, [*rows[0], *rows[1]], shrink=0.9, aspect=20, label="cosine")
    return figure


def _show(axes: Axes, picture: np.ndarray) -> None:
    axes.imshow(picture, interpolation="nearest" if len(picture) < 64 else "antialiased")


def _rows(pictures: np.ndarray, names: Sequence[str], room: float) -> tuple[Figure, list[list[Axes]]]:
    """A row of panels for each name, a column for each picture, and `room` inches at the right."""
    count, height, width = pictures.shape[:3]
    figure = empty_figure(count * _SIDE + 0.4 + room, len(names) * (_SIDE * height / width + 0.05) + 0.1)
    grid = figure.subplots(len(names), count, squeeze=False)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        hide_frame(axes)
    for axes, name in zip(grid[:, 0], names, strict=True):
        axes.set_ylabel(name, fontsize=8, color=GREY)
    return figure, [list(row) for row in grid]
