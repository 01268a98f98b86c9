"""Where a model looks in an image: every head's map, and maps laid over images (ViT, figures 6 and 14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vit.figures.mosaic import centres, mosaic, span
from vit.figures.style import RED, empty_figure, style

_MOST_LABELS = 16


def head_maps(
    image: ArrayLike,
    maps: ArrayLike,
    layers: Sequence[int],
    title: str = "",
    query: tuple[float, float] | None = None,
) -> Figure:
    """The image (H, W, 3) uint8 beside maps (l, h, gh, gw): a row for each of `layers` (numbers from 1), a column a
    head. Every map is stretched to its own greatest weight; `query` (row, column in pixels) is marked in the image.
    """
    values = np.asarray(maps, dtype=np.float64)
    assert len(values) == len(layers), f"{len(values)} maps for {len(layers)} layers"
    tiles = values / np.maximum(values.max(axis=(2, 3), keepdims=True), np.finfo(np.float64).tiny)
    rows, columns, height, width = tiles.shape
    gap = max(1, round(0.1 * max(height, width)))
    ratio = span(rows, height, gap) / span(columns, width, gap)
    with style():
        figure = empty_figure(8.0, min(11.0, max(2.6, 5.2 * ratio + 0.9)))
        left, right = figure.subplots(1, 2, width_ratios=(1, 2.6))
        _show(left, np.asarray(image))
        left.set_anchor("N")
        if query is not None:
            left.plot(query[1], query[0], marker="s", markersize=6, markerfacecolor="none", markeredgecolor=RED)
        right.imshow(mosaic(tiles, gap), cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
        right.set_anchor("N")
        _bare(right)
        heads, shown = range(0, columns, _every(columns)), range(0, rows, _every(rows))
        right.set_xticks(centres(columns, width, gap)[list(heads)], [str(head + 1) for head in heads])
        right.set_yticks(centres(rows, height, gap)[list(shown)], [str(layers[place]) for place in shown])
        right.set(xlabel="head", ylabel="block", title=title)
    return figure


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


def _every(count: int) -> int:
    return -(-count // _MOST_LABELS)
