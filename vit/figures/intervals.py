"""Values with their intervals, one a line: what is estimated, and how far it may be off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from vit.figures.style import BLUE, GREY, ORANGE, empty_figure, style

_LONGEST_NAME = 44


class Estimate(NamedTuple):
    """A fraction and the ends of its interval, which need not be around it evenly."""

    name: str
    value: float
    low: float
    high: float


def intervals(estimates: Sequence[Estimate], what: str, *, signed: bool = False) -> Figure:
    """One line an estimate, the first on top; `what` names the axis.

    `signed`: differences, in points, beside a line at zero; those whose interval holds it are pale.
    """
    with style():
        figure = empty_figure(6.4, 0.9 + 0.34 * len(estimates))
        axes = figure.subplots()
        for place, estimate in enumerate(estimates):
            _draw(axes, place, estimate, signed=signed)
        axes.set_yticks(range(len(estimates)), [_short(estimate.name) for estimate in estimates])
        axes.set(xlabel=what, ylim=(len(estimates) - 0.5, -0.5))
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        if signed:
            axes.axvline(0, color=GREY, linewidth=0.9)
        axes.xaxis.set_major_formatter(FuncFormatter(_points if signed else _percent))
    return figure


def _draw(axes: Axes, place: int, estimate: Estimate, *, signed: bool) -> None:
    unsure = signed and estimate.low <= 0 <= estimate.high
    color = ORANGE if signed and estimate.value < 0 else BLUE
    alpha = 0.45 if unsure else 1.0
    axes.hlines(place, estimate.low, estimate.high, color=color, alpha=alpha, linewidth=2.4)
    axes.plot([estimate.value], [place], color=color, alpha=alpha, marker="o", markersize=5.5)


def _percent(value: float, _: object) -> str:
    return f"{100 * value:.4g} %"


def _points(value: float, _: object) -> str:
    points = round(100 * value, 6)
    return f"{points:+.3g}".replace("-", "−") if points else "0"


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
