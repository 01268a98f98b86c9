"""Figures of kernel regression: estimates, the kernel's shape, the weights, the errors over training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import ArrayLike

from vit.figures.style import BLUE, GREEN, GREY, ORANGE, PALE, RED, add_colorbar, empty_figure, style

ERRORS = {
    "leave_one_out": ("training points, own key hidden: the loss", BLUE, "-"),
    "train": ("training points, own key seen", GREEN, "-"),
    "val": ("fresh noisy points: validation", ORANGE, "-"),
    "test": ("test points: to the curve, plus the noise", RED, "-"),
    "noise": ("the noise alone", GREY, ":"),
}
"""Label, colour and dash of each line that `plot_errors` draws."""


def plot_estimates(
    x: ArrayLike, curve: ArrayLike, panels: Mapping[str, ArrayLike], point_x: ArrayLike, point_y: ArrayLike
) -> Figure:
    """Draw panels by title, one below the other: an estimate (n,) at x (n,), the true curve, the training points."""
    with style():
        figure = empty_figure(7.6, 1.55 * len(panels) + 0.6)
        grid = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, (title, estimate) in zip(grid, panels.items(), strict=True):
            axes.set_title(title)
            axes.plot(point_x, point_y, ".", color=GREY, markersize=3, alpha=0.6, label="training points")
            axes.plot(x, curve, color=ORANGE, linewidth=1.2, label="the curve")
            axes.plot(x, estimate, color=BLUE, linewidth=1.4, label="estimate")
            axes.set_ylabel("y")
        grid[-1].set_xlabel("x")
        grid[0].margins(x=0.01)
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside upper right", ncols=3)
    return figure


def plot_wiggles(x: ArrayLike, parts: Mapping[str, ArrayLike], point_x: ArrayLike, point_noise: ArrayLike) -> Figure:
    """Draw what the training noise adds to estimates (n,) at x (n,), by name, and the noise of each training point."""
    with style():
        figure = empty_figure(7.6, 2.9)
        axes = figure.add_subplot()
        axes.plot(point_x, point_noise, ".", color=GREY, markersize=3, alpha=0.6, label="noise of a training point")
        for (name, part), color in zip(parts.items(), (ORANGE, BLUE), strict=True):
            axes.plot(x, part, color=color, label=name)
        axes.set(xlabel="x", ylabel="added to the estimate")
        axes.margins(x=0.01)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=3)
    return figure


def plot_kernels(keys: ArrayLike, widths: ArrayLike, fixed_width: float) -> Figure:
    """Draw the kernel `exp(-½ (u w)²)`, fixed and learned, and beside it the w (m,) of each key (m,)."""
    keys, widths = np.asarray(keys), np.asarray(widths)
    with style():
        figure = empty_figure(8.0, 3.1)
        left, right = figure.subplots(1, 2)
        u = np.linspace(-3.5 / fixed_width, 3.5 / fixed_width, 401)
        quantiles = np.quantile(widths, [0.1, 0.5, 0.9])
        fixed, low, median, high = (np.exp(-0.5 * (u * w) ** 2) for w in (fixed_width, *quantiles))
        left.plot(u, fixed, color=GREY, linestyle="--", label=f"fixed, w = {fixed_width:g}")
        left.plot(u, median, color=BLUE, label=f"learned, median w = {quantiles[1]:.2f}")
        middle = f"learned, 8 of 10 keys (w {quantiles[0]:.2f} to {quantiles[2]:.2f})"
        left.fill_between(u, low, high, color=BLUE, alpha=0.2, linewidth=0, label=middle)
        left.set_ylim(0, 1.55)  # room for the legend
        left.set_yticks([0, 0.5, 1])
        left.legend(loc="upper left")
        left.set(title="kernel", xlabel="distance of query and key", ylabel="weight before normalising")
        right.plot(keys, widths, ".", color=BLUE, label="learned")
        right.axhline(fixed_width, color=GREY, linestyle="--", label="fixed")
        right.set(title="w of each key (standard deviation 1/w)", xlabel="key", ylabel="w")
        right.set_ylim(0, 1.15 * max(float(widths.max()), fixed_width))  # room for the legend
        right.legend(loc="upper left", ncols=2)
    return figure


def plot_weight_maps(maps: Mapping[str, ArrayLike], queries: ArrayLike, keys: ArrayLike) -> Figure:
    """Draw maps (n, m) of weights by title: a row for each query (n,), a column for each key (m,), both sorted.

    All maps share one scale; it ends at the 99.5th percentile of the last map's weights.
    """
    queries, keys = np.asarray(queries), np.asarray(keys)
    arrays = {title: np.asarray(weights) for title, weights in maps.items()}
    top = float(np.quantile(list(arrays.values())[-1], 0.995))
    with style():
        figure = empty_figure(4.0 * len(arrays) + 0.7, 3.9)
        grid = figure.subplots(1, len(arrays), sharey=True, squeeze=False)[0]
        for axes, (title, weights) in zip(grid, arrays.items(), strict=True):
            image = axes.imshow(weights, cmap="viridis", vmin=0, vmax=top, interpolation="nearest", aspect="auto")
            axes.grid(visible=False)
            axes.set(title=title, xlabel="key, a column each")
            axes.set_xticks(*_some_ticks(keys))
            axes.set_yticks(*_some_ticks(queries))
        grid[0].set_ylabel("query, a row each")
        add_colorbar(figure, image, list(grid), extend="max", label="weight", aspect=30)
    return figure


def _some_ticks(x: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Choose six rows or columns and label them with their x."""
    shown = np.unique(np.linspace(0, len(x) - 1, 6).round().astype(int))
    return shown, [f"{x[place]:.1f}" for place in shown]


def plot_errors(lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """Draw mean squared errors over training: a name of `ERRORS` → steps and errors.

    The gap between training and test error, which share their steps, is marked where both are given.
    """
    with style():
        figure = empty_figure(7.0, 4.2)
        axes = figure.add_subplot()
        for name, (steps, values) in lines.items():
            label, color, dash = ERRORS[name]
            axes.plot(steps, values, color=color, linestyle=dash, label=label)
        if {"train", "test"} <= lines.keys():
            (steps, train), (_, test) = lines["train"], lines["test"]
            axes.fill_between(steps, train, test, color=PALE, alpha=0.6, linewidth=0)
            axes.annotate(
                f"gap {test[-1] - train[-1]:.3f}",
                (steps[-1], (test[-1] + train[-1]) / 2),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                annotation_clip=False,
            )
        axes.set(xlabel="steps, each with all points", ylabel="mean squared error")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.legend()
    return figure
