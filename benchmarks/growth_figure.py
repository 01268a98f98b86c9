"""Time and memory of a model against its size: one column for each quantity, time above memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from vit.figures.style import BLUE, ORANGE, empty_figure, style

_LINES = {"forward": (BLUE, "o"), "step": (ORANGE, "s")}
_COSTS = {"seconds": "time", "bytes": "memory besides the weights"}
_LABELED = 7

Costs = Mapping[tuple[str, str], Mapping[str, Sequence[float]]]
Slopes = Mapping[tuple[str, str], Mapping[str, float | None]]


def growth(values: Mapping[str, Sequence[int]], costs: Costs, slopes: Slopes) -> Figure:
    """Draw panels of (quantity, cost), with a line for forward passes and one for training steps, on log-log axes.

    `slopes` are the measured exponents for the legends; None if there is none.
    """
    with style():
        figure = empty_figure(3.0 * len(values), 5.2)
        panels = figure.subplots(len(_COSTS), len(values), squeeze=False, sharex="col", sharey="row")
        for column, name in enumerate(values):
            for row, cost in enumerate(_COSTS):
                axes = panels[row][column]
                _draw(axes, values[name], costs[name, cost], slopes[name, cost])
                axes.yaxis.set_major_formatter(FuncFormatter(format_duration if cost == "seconds" else _size))
                if column == 0:
                    axes.set_ylabel(_COSTS[cost])
            panels[-1][column].set_xlabel(name)
    return figure


def _draw(
    axes: Axes, values: Sequence[int], lines: Mapping[str, Sequence[float]], slopes: Mapping[str, float | None]
) -> None:
    for name, costs in lines.items():
        color, marker = _LINES[name]
        slope = slopes[name]
        label = name if slope is None else f"{name}, exponent {slope:.2f}"
        axes.plot(values, costs, color=color, marker=marker, markersize=4, label=label)
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(values[:: -(-len(values) // _LABELED)])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="x", labelrotation=40)
    axes.legend(loc="upper left")


def format_duration(seconds: float, _: int) -> str:
    """Format a tick in s, ms or µs."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.999 * size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds * 1e6:g} µs"


def _size(count: float, _: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.999 * size:
            return f"{count / size:g} {unit}"
    return f"{count:g} B"
