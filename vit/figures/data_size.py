"""Accuracy against the number of training images, and the differences between recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from vit.config import check
from vit.figures.style import COLORS, GREY, MARKERS, empty_figure, signed_points, style

MOST_RECIPES = len(COLORS)
"""More could not be told apart."""
_OFFSET = 1.02
"""Neighbouring recipes are drawn this factor apart, so that their bars can be told from each other."""
Points = Sequence[Mapping[str, Any]]
"""`num_images`, `fraction`, `mean`, `by_seed` (seed → value); `low` and `high`, None with one seed."""


def plot_data_size(curves: Mapping[str, Points], differences: Mapping[str, Points]) -> Figure:
    """Draw, left, a line for each recipe through its means, a dot for each seed and a bar from `low` to `high`; right,
    the `differences`, if there are any. Values are fractions; the number of images is on a logarithmic axis.
    """
    check(len(curves) <= MOST_RECIPES, "curves", len(curves), f"at most {MOST_RECIPES} recipes can be told apart")
    looks = dict(zip(curves, zip(COLORS, MARKERS, strict=True), strict=False))
    panels = 1 + bool(differences)
    has_bars = any(point["low"] is not None for points in curves.values() for point in points)
    bars = ", bars: 95 % t-interval of the mean" if has_bars else ""
    with style():
        figure = empty_figure(5.4 * panels, 3.8)
        axes = figure.add_subplot(1, panels, 1)
        axes.set(title=f"test top-1; dots: seeds{bars}", ylabel="accuracy")
        _draw(axes, curves, looks, least=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
        axes.set_ylim(top=min(axes.get_ylim()[1], 1.005))
        axes.legend()
        if differences:
            axes = figure.add_subplot(1, panels, 2)
            first = next(iter(curves))
            axes.set(title=f"difference to {first}, paired by seed", ylabel="points of accuracy")
            axes.axhline(0, color=GREY, linewidth=0.8)
            _draw(axes, differences, looks, least=-1)
            axes.yaxis.set_major_formatter(FuncFormatter(signed_points))
            axes.legend()
    return figure


def _draw(axes: Axes, curves: Mapping[str, Points], looks: Mapping[str, tuple[str, str]], *, least: float) -> None:
    axes.set(xscale="log", xlabel="training images (part of the set)")
    for place, (name, points) in enumerate(curves.items()):
        color, marker = looks[name]
        offset = _OFFSET ** (place - (len(curves) - 1) / 2)
        x = [point["num_images"] * offset for point in points]
        means = [point["mean"] for point in points]
        axes.plot(x, means, color=color, marker=marker, markersize=7, markerfacecolor="white", label=name)
        for at, point in zip(x, points, strict=True):
            if point["low"] is not None:
                ends = np.clip([point["low"], point["high"]], least, 1)  # a t-interval may leave what is possible
                axes.plot([at, at], ends, color=color, linewidth=6, alpha=0.25, solid_capstyle="butt", zorder=1.5)
            values = list(point["by_seed"].values())
            axes.plot([at] * len(values), values, ".", color=color, markersize=5, markeredgewidth=0, zorder=3)
    sizes = {point["num_images"]: point["fraction"] for points in curves.values() for point in points}
    axes.set_xticks(list(sizes), [f"{size:,}\n{100 * fraction:.3g} %" for size, fraction in sizes.items()])
    axes.xaxis.set_minor_locator(NullLocator())
