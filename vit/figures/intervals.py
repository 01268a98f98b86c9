"""Estimates with their confidence intervals, one on each line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from vit.config import check
from vit.figures.style import BLUE, GREY, ORANGE, empty_figure, shorten, signed_points, style

_MAX_NAME = 44


class Estimate(NamedTuple):
    """A fraction and the ends of its interval, which need not be symmetric."""

    name: str
    value: float
    low: float
    high: float


def plot_intervals(estimates: Sequence[Estimate], label: str, *, signed: bool = False) -> Figure:
    """Draw one line for each estimate, the first on top; `label` names the axis.

    `signed`: differences, in points, beside a line at zero; those whose interval holds zero are pale.
    """
    with style():
        figure = empty_figure(6.4, _height(len(estimates)))
        _draw(figure.subplots(), estimates, label, signed=signed)
    return figure


def plot_interval_panels(panels: Mapping[str, Sequence[Estimate]], label: str, *, signed: bool = False) -> Figure:
    """Draw panels beside each other, by title: the same names in all of them, in the same order.

    Each is drawn as by `plot_intervals`, on one scale. ValueError where a panel has other names, or none.
    """
    check(bool(panels) and all(panels.values()), "panels", panels, "there must be an estimate in each")
    first, *others = ([estimate.name for estimate in estimates] for estimates in panels.values())
    for title, names in zip(list(panels)[1:], others, strict=True):
        check(names == first, f"panels: {title}", names, f"the first has {', '.join(first)}")
    with style():
        figure = empty_figure(2.2 + 3.2 * len(panels), _height(len(first)) + 0.2)
        columns = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
        for axes, (title, estimates) in zip(columns, panels.items(), strict=True):
            _draw(axes, estimates, label, signed=signed)
            axes.set_title(title)
    return figure


def _height(lines: int) -> float:
    return 0.9 + 0.34 * lines


def _draw(axes: Axes, estimates: Sequence[Estimate], label: str, *, signed: bool) -> None:
    for place, estimate in enumerate(estimates):
        color = ORANGE if signed and estimate.value < 0 else BLUE
        is_unsure = estimate.low <= 0 <= estimate.high or estimate.low == estimate.high  # of one seed: no interval
        alpha = 0.45 if signed and is_unsure else 1.0
        axes.hlines(place, estimate.low, estimate.high, color=color, alpha=alpha, linewidth=2.4)
        axes.plot([estimate.value], [place], color=color, alpha=alpha, marker="o", markersize=5.5)
    axes.set_yticks(range(len(estimates)), [shorten(estimate.name, _MAX_NAME) for estimate in estimates])
    axes.set(xlabel=label, ylim=(len(estimates) - 0.5, -0.5))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    if signed:
        axes.axvline(0, color=GREY, linewidth=0.9)
    axes.xaxis.set_major_formatter(FuncFormatter(signed_points if signed else lambda value, _: f"{100 * value:.4g} %"))
