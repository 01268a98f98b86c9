"""Estimates with their confidence intervals, one on each line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

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
        figure = empty_figure(6.4, 0.9 + 0.34 * len(estimates))
        axes = figure.subplots()
        for place, estimate in enumerate(estimates):
            color = ORANGE if signed and estimate.value < 0 else BLUE
            alpha = 0.45 if signed and estimate.low <= 0 <= estimate.high else 1.0
            axes.hlines(place, estimate.low, estimate.high, color=color, alpha=alpha, linewidth=2.4)
            axes.plot([estimate.value], [place], color=color, alpha=alpha, marker="o", markersize=5.5)
        axes.set_yticks(range(len(estimates)), [shorten(estimate.name, _MAX_NAME) for estimate in estimates])
        axes.set(xlabel=label, ylim=(len(estimates) - 0.5, -0.5))
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        if signed:
            axes.axvline(0, color=GREY, linewidth=0.9)
        axes.xaxis.set_major_formatter(
            FuncFormatter(signed_points if signed else lambda value, _: f"{100 * value:.4g} %")
        )
    return figure
