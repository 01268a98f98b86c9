"""Accuracy against the number of training images, and how far recipes are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from vit.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, empty_figure, style

_COLORS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
_MARKERS = "osD^vX"
_ASIDE = 1.02
"""Neighbouring recipes are drawn this factor apart, so that their bars can be told from each other."""
Points = Sequence[Mapping[str, Any]]
"""`num_images`, `fraction`, `mean`, `by_seed` (seed → value); `low` and `high`, None with one seed."""


def data_size(curves: Mapping[str, Points], differences: Mapping[str, Points]) -> Figure:
    """Left: a line a recipe through the means, every seed a dot, a bar from `low` to `high`. Right: `differences`.

    Values are fractions; the number of images is on a logarithmic axis. The right panel is there if differences are.
    """
    assert len(curves) <= len(_COLORS), f"at most {len(_COLORS)} recipes, not {len(curves)}"
    looks = dict(zip(curves, zip(_COLORS, _MARKERS, strict=False), strict=False))
    panels = 1 + bool(differences)
    with style():
        figure = empty_figure(5.4 * panels, 3.8)
        axes = figure.add_subplot(1, panels, 1)
        axes.set(title=f"test top-1; dots: seeds{_said_of_bars(curves)}", ylabel="accuracy")
        _draw(axes, curves, looks)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
        axes.set_ylim(top=min(axes.get_ylim()[1], 1.005))
        axes.legend()
        if differences:
            axes = figure.add_subplot(1, panels, 2)
            first = next(iter(curves))
            axes.set(title=f"difference to {first}, paired by seed", ylabel="points of accuracy")
            axes.axhline(0, color=GREY, linewidth=0.8)
            _draw(axes, differences, looks)
            axes.yaxis.set_major_formatter(FuncFormatter(_points))
            axes.legend()
    return figure


def _points(value: float, _: object) -> str:
    return f"{100 * value:+.3g}".replace("-", "−") if abs(value) > 1e-9 else "0"


def _said_of_bars(curves: Mapping[str, Points]) -> str:
    points = [point for row in curves.values() for point in row]
    has_bars = any(point["low"] is not None for point in points)
    return ", bars: 95 % t-interval of the mean" if has_bars else ""


def _draw(axes: Axes, curves: Mapping[str, Points], looks: Mapping[str, tuple[str, str]]) -> None:
    axes.set(xscale="log", xlabel="training images (part of the set)")
    for place, (name, points) in enumerate(curves.items()):
        color, marker = looks[name]
        aside = _ASIDE ** (place - (len(curves) - 1) / 2)
        x = [point["num_images"] * aside for point in points]
        means = [point["mean"] for point in points]
        axes.plot(x, means, color=color, marker=marker, markersize=7, markerfacecolor="white", label=name)
        for at, point in zip(x, points, strict=True):
            if point["low"] is not None:
                ends = [point["low"], point["high"]]
                axes.plot([at, at], ends, color=color, linewidth=6, alpha=0.25, solid_capstyle="butt", zorder=1.5)
            values = list(point["by_seed"].values())
            axes.plot([at] * len(values), values, ".", color=color, markersize=5, markeredgewidth=0, zorder=3)
    sizes = {point["num_images"]: point["fraction"] for points in curves.values() for point in points}
    axes.set_xticks(list(sizes), [f"{size:,}\n{100 * fraction:.3g} %" for size, fraction in sizes.items()])
    axes.xaxis.set_minor_locator(NullLocator())
