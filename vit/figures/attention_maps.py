"""Where a model looks in an image: every head's map, and maps laid over images (ViT, figures 6 and 14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from vit.figures.mosaic import centres, mosaic, span
from vit.figures.style import RED, empty_figure, style

_IMAGE_WIDTH, _MAPS_WIDTH, _MOST_HEIGHT = 2.1, 5.2, 9.0
_TOP, _BOTTOM, _BETWEEN = 0.35, 0.55, 0.65
"""Inches, as all of these."""


def head_maps(
    image: ArrayLike,
    maps: ArrayLike,
    layers: Sequence[int],
    title: str = "",
    query: tuple[int, int] | None = None,
) -> Figure:
    """The image (H, W, 3) uint8 beside maps (l, h, gh, gw): a row for each of `layers` (numbers from 1), a column a
    head. Every map is stretched to its own greatest weight; the patch `query` (row, column) is framed in the image.
    """
    values = np.asarray(maps, dtype=np.float64)
    assert len(values) == len(layers), f"{len(values)} maps for {len(layers)} layers"
    tiles = values / np.maximum(values.max(axis=(2, 3), keepdims=True), np.finfo(np.float64).tiny)
    picture = np.asarray(image)
    rows, columns, height, width = tiles.shape
    gap = max(1, round(0.1 * max(height, width)))
    ratio = span(rows, height, gap) / span(columns, width, gap)
    sides = _MAPS_WIDTH * min(1.0, _MOST_HEIGHT / (_MAPS_WIDTH * ratio))  # inches of the maps' width
    with style():
        left, right = _two_panels(
            (_IMAGE_WIDTH, _IMAGE_WIDTH * picture.shape[0] / picture.shape[1]), (sides, sides * ratio)
        )
        _show(left, picture)
        if query is not None:
            left.add_patch(_frame(query, picture.shape[0] / height, picture.shape[1] / width))
        right.imshow(mosaic(tiles, gap), cmap="viridis", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
        _bare(right)
        heads, shown = _labelled(columns, sides / 0.24), _labelled(rows, sides * ratio / 0.16)
        right.set_xticks(centres(columns, width, gap)[heads], [str(head + 1) for head in heads])
        right.set_yticks(centres(rows, height, gap)[shown], [str(layers[place]) for place in shown])
        right.set(xlabel="head (each map from 0 to its own greatest weight)", ylabel="block", title=title)
    return cast(Figure, right.figure)


def _frame(query: tuple[int, int], ph: float, pw: float) -> Rectangle:
    """Around a patch of so many pixels; a pixel's middle has its number."""
    corner = (query[1] * pw - 0.5, query[0] * ph - 0.5)
    return Rectangle(corner, pw, ph, fill=False, edgecolor=RED, linewidth=2, clip_on=False)


def _two_panels(first: tuple[float, float], second: tuple[float, float]) -> tuple[Axes, Axes]:
    """Axes of so many inches (width, height), their tops level; labels stand around the second."""
    height = max(first[1], second[1]) + _TOP + _BOTTOM
    width = first[0] + second[0] + _BETWEEN + 0.3
    figure = Figure(figsize=(width, height))
    panels = []
    for start, (w, h) in ((0.1, first), (0.1 + first[0] + _BETWEEN, second)):
        panels.append(figure.add_axes((start / width, (height - _TOP - h) / height, w / width, h / height)))
    return panels[0], panels[1]


def attention_overlays(images: ArrayLike, maps: Mapping[str, ArrayLike], titles: Sequence[str] = ()) -> Figure:
    """A row for each image (b, H, W, 3) uint8: the image, then each of `maps` (b, gh, gw) laid over it, greyed.

    A map goes from its own least to its own greatest value. `titles` stand beside the rows.
    """
    pictures = np.asarray(images)
    height, width = pictures.shape[1:3]
    side = 1.7
    with style():
        size = (side * (len(maps) + 1) + 0.5, side * height / width * len(pictures) + 0.5)
        figure = empty_figure(*size)
        grid = figure.subplots(len(pictures), len(maps) + 1, squeeze=False)
        for row, picture in enumerate(pictures):
            _show(grid[row, 0], picture)
            if titles:
                grid[row, 0].set_ylabel(titles[row], fontsize=8)
            for axes, values in zip(grid[row, 1:], maps.values(), strict=True):
                _overlay(axes, picture, np.asarray(values, dtype=np.float64)[row])
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
    _bare(axes)


def _bare(axes: Axes) -> None:
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _labelled(count: int, room: float) -> list[int]:
    """Places that get a label where there is room for so many."""
    return list(range(0, count, max(1, -(-count // max(1, int(room))))))
