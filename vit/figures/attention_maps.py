"""Attention maps of an image: one for each head, and maps laid over images (ViT, figures 6 and 14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from vit.config import check
from vit.figures.mosaic import mosaic, mosaic_length, tile_centres
from vit.figures.style import RED, as_floats, empty_figure, hide_frame, shorten, style

_IMAGE_WIDTH, _MAPS_WIDTH, _MAX_HEIGHT = 2.1, 5.2, 9.0  # inches, as all of these
_TITLE_LENGTH = 30
_TOP, _BOTTOM, _BETWEEN = 0.35, 0.55, 0.65


def plot_head_maps(
    image: ArrayLike,
    maps: ArrayLike,
    blocks: Sequence[int],
    title: str = "",
    query: tuple[int, int] | None = None,
) -> Figure:
    """Draw the image (H, W, 3) uint8 beside maps (l, h, gh, gw): a row for each of `blocks` (from 1), a column for each
    head. Every map is scaled to its own maximum; the patch `query` (row, column) is framed in the image.
    """
    values = as_floats(maps)
    check(len(values) == len(blocks), "maps", values.shape, f"there are {len(blocks)} blocks; give a row for each")
    tiles = values / np.maximum(values.max(axis=(2, 3), keepdims=True), np.finfo(np.float64).tiny)
    picture = np.asarray(image)
    rows, columns, height, width = tiles.shape
    gap = max(1, round(0.1 * max(height, width)))
    ratio = mosaic_length(rows, height, gap) / mosaic_length(columns, width, gap)
    sides = _MAPS_WIDTH * min(1.0, _MAX_HEIGHT / (_MAPS_WIDTH * ratio))  # width in inches
    with style():
        left, right = _two_panels(
            (_IMAGE_WIDTH, _IMAGE_WIDTH * picture.shape[0] / picture.shape[1]), (sides, sides * ratio)
        )
        _show(left, picture)
        if query is not None:
            ph, pw = picture.shape[0] / height, picture.shape[1] / width
            corner = (query[1] * pw - 0.5, query[0] * ph - 0.5)  # the centre of pixel 0 is at 0
            left.add_patch(Rectangle(corner, pw, ph, fill=False, edgecolor=RED, linewidth=2, clip_on=False))
        right.imshow(mosaic(tiles, gap), cmap="viridis", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
        hide_frame(right)
        heads, shown = _places_with_label(columns, sides / 0.24), _places_with_label(rows, sides * ratio / 0.16)
        right.set_xticks(tile_centres(columns, width, gap)[heads], [str(head + 1) for head in heads])
        right.set_yticks(tile_centres(rows, height, gap)[shown], [str(blocks[place]) for place in shown])
        right.set(xlabel="head (each map from 0 to its own greatest weight)", ylabel="block", title=title)
    return cast(Figure, right.figure)


def _two_panels(first: tuple[float, float], second: tuple[float, float]) -> tuple[Axes, Axes]:
    """Add two axes of given (width, height) in inches with their tops aligned; labels stand around the second."""
    height = max(first[1], second[1]) + _TOP + _BOTTOM
    width = first[0] + second[0] + _BETWEEN + 0.3
    figure = Figure(figsize=(width, height))
    panels = []
    for start, (w, h) in ((0.1, first), (0.1 + first[0] + _BETWEEN, second)):
        panels.append(figure.add_axes((start / width, (height - _TOP - h) / height, w / width, h / height)))
    return panels[0], panels[1]


def plot_attention_overlays(images: ArrayLike, maps: Mapping[str, ArrayLike], titles: Sequence[str] = ()) -> Figure:
    """Draw a row for each image (b, H, W, 3) uint8: the image, then each of `maps` (b, gh, gw) over it in grey.

    A map is scaled from its own minimum to its own maximum. `titles` stand beside the rows.
    """
    pictures = np.asarray(images)
    height, width = pictures.shape[1:3]
    side = 1.7
    with style():
        figure = empty_figure(side * (len(maps) + 1) + 0.5, side * height / width * len(pictures) + 0.5)
        grid = figure.subplots(len(pictures), len(maps) + 1, squeeze=False)
        for row, picture in enumerate(pictures):
            _show(grid[row, 0], picture)
            if titles:
                lines = [shorten(line, _TITLE_LENGTH) for line in titles[row].split("\n")]
                grid[row, 0].set_ylabel("\n".join(lines), fontsize=8)
            for axes, values in zip(grid[row, 1:], maps.values(), strict=True):
                _overlay(axes, picture, as_floats(values)[row])
        for axes, name in zip(grid[0], ("image", *maps), strict=True):
            axes.set_title(name, fontsize=9, loc="center")
    return figure


def _overlay(axes: Axes, picture: np.ndarray, values: np.ndarray) -> None:
    grey = picture @ np.array([0.299, 0.587, 0.114])
    height, width = grey.shape
    _show(axes, grey)
    reach = float(values.max() - values.min())
    stretched = (values - values.min()) / (reach or 1.0)
    edges = (-0.5, width - 0.5, height - 0.5, -0.5)
    axes.imshow(stretched, cmap="inferno", vmin=0, vmax=1, alpha=0.62, extent=edges, interpolation="bicubic")


def _show(axes: Axes, picture: np.ndarray) -> None:
    axes.imshow(picture, cmap="gray", vmin=0, vmax=255, interpolation="nearest" if len(picture) < 64 else "antialiased")
    axes.set(xticks=[], yticks=[])
    hide_frame(axes)


def _places_with_label(count: int, room: float) -> list[int]:
    """Choose evenly spaced places out of `count` where there is room for `room` labels."""
    return list(range(0, count, max(1, -(-count // max(1, int(room))))))
