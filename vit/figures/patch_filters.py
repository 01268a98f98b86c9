"""Filters of the first layer as small colour images (ViT, figure 7, left)."""

from __future__ import annotations

from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vit.config import check
from vit.figures.style import as_floats, empty_figure, style

_COLUMNS = 7
_SIDE = 0.75


def plot_patch_filters(filters: ArrayLike, title: str = "") -> Figure:
    """Draw images (k, ph, pw, 3) with values from 0 to 1, seven in a row."""
    values = as_floats(filters)
    check(values.shape[3:] == (3,), "filters", values.shape, "they must be k ph pw 3")
    rows = -(-len(values) // _COLUMNS)
    with style():
        figure = empty_figure(_COLUMNS * _SIDE + 0.2, rows * _SIDE + 0.5)
        figure.suptitle(title, fontsize=10, x=0.02, ha="left")
        grid = figure.subplots(rows, _COLUMNS, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, image in zip(grid.flat, values, strict=False):
            axes.imshow(image, interpolation="nearest", vmin=0, vmax=1)
    return figure
