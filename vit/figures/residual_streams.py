"""Skip connections against branches, and the similarity of tokens, by depth (Raghu et al. 2021, figures 8 and 9)."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike

from vit.figures.style import BLUE, ORANGE, as_floats, empty_figure, style


def plot_residual_streams(
    patch_ratio: ArrayLike, class_ratio: ArrayLike, class_to_patches: ArrayLike, between_patches: ArrayLike
) -> Figure:
    """Draw ratios (l, 2) of skip to branch in a panel each for attention and feed-forward, and cosines (l,) in a third.

    A curve that is NaN throughout (of a model without a class token) is left out.
    """
    ratios = {"patches": as_floats(patch_ratio), "class token": as_floats(class_ratio)}
    cosines = {"patch, patch": as_floats(between_patches), "class, patch": as_floats(class_to_patches)}
    with style():
        figure = empty_figure(8.2, 3.0)
        first, second, third = figure.subplots(1, 3)
        for place, (axes, branch) in enumerate(((first, "attention"), (second, "feed-forward"))):
            _lines(axes, {name: values[:, place] for name, values in ratios.items()})
            axes.set(title=branch, yscale="log", ylabel="length of skip / branch" if place == 0 else "")
            low, high = axes.get_ylim()
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 5 * low else (1, 1.5, 2, 3, 4, 5, 6, 8)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        _lines(third, cosines)
        lowest = min(0.0, *(float(np.nanmin(values)) for values in cosines.values() if not np.isnan(values).all()))
        third.set(title="after the block", ylabel="mean cosine", ylim=(1.05 * lowest, 1.02))
        for axes, columns in ((first, 2), (third, 2)):
            if axes.lines:
                axes.legend(loc="upper left", bbox_to_anchor=(-0.05, -0.22), ncols=columns, columnspacing=1.2)
    return figure


def _lines(axes: Axes, curves: dict[str, np.ndarray]) -> None:
    for (name, values), color in zip(curves.items(), (BLUE, ORANGE), strict=True):
        if not np.isnan(values).all():
            places = range(1, len(values) + 1)
            axes.plot(places, values, color=color, marker="o", markersize=3, label=name)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axes.set(xlabel="block", xlim=(0.5, len(next(iter(curves.values()))) + 0.5))
