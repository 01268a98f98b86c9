"""Kernel regression looked at: estimates, the kernel's shape, the map of weights, the errors over training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import ArrayLike

from vit.figures.style import BLUE, GREEN, GREY, ORANGE, PALE, RED, empty_figure, style

ERRORS = {
    "leave_one_out": ("training points, own key hidden: the loss", BLUE, "-"),
    "train": ("training points, own key seen", GREEN, "-"),
    "val": ("fresh noisy points: validation", ORANGE, "-"),
    "test": ("test points: to the curve, plus the noise", RED, "-"),
    "noise": ("the noise alone", GREY, ":"),
}
"""The lines of `errors`, by name."""


def estimates(
    x: ArrayLike, curve: ArrayLike, panels: Mapping[str, ArrayLike], point_x: ArrayLike, point_y: ArrayLike
) -> Figure:
    """One panel below the other, each with its title: an estimate (n,) at x (n,), the curve, the training points."""
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


def wiggles(x: ArrayLike, parts: Mapping[str, ArrayLike], point_x: ArrayLike, point_noise: ArrayLike) -> Figure:
    """What the noise of the training points adds to estimates (n,) at x (n,), by name; and the noise of each point."""
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


def kernels(keys: ArrayLike, widths: ArrayLike, fixed_width: float) -> Figure:
    """The kernel's shape `exp(-½ (u w)²)`, fixed and learned, and beside it the w (m,) of each key (m,)."""
    keys, widths = np.asarray(keys), np.asarray(widths)
    with style():
        figure = empty_figure(8.0, 3.1)
        left, right = figure.subplots(1, 2)
        _draw_shapes(left, np.quantile(widths, [0.1, 0.5, 0.9]), fixed_width)
        left.set(title="kernel", xlabel="distance of query and key", ylabel="weight before normalising")
        right.plot(keys, widths, ".", color=BLUE, label="learned")
        right.axhline(fixed_width, color=GREY, linestyle="--", label="fixed")
        right.set(title="w of each key (standard deviation 1/w)", xlabel="key", ylabel="w")
        right.set_ylim(0, 1.15 * max(float(widths.max()), fixed_width))  # room for the legend
        right.legend(loc="upper left", ncols=2)
    return figure


def _draw_shapes(axes: Axes, quantiles: np.ndarray, fixed_width: float) -> None:
    u = np.linspace(-3.5 / fixed_width, 3.5 / fixed_width, 401)
    low, median, high = (np.exp(-0.5 * (u * w) ** 2) for w in quantiles)
    axes.plot(u, np.exp(-0.5 * (u * fixed_width) ** 2), color=GREY, linestyle="--", label=f"fixed, w = {fixed_width:g}")
    axes.plot(u, median, color=BLUE, label=f"learned, median w = {quantiles[1]:.2f}")
    middle = f"learned, 8 of 10 keys (w {quantiles[0]:.2f} to {quantiles[2]:.2f})"
    axes.fill_between(u, low, high, color=BLUE, alpha=0.2, linewidth=0, label=middle)
    axes.set_ylim(0, 1.55)  # room for the legend
    axes.set_yticks([0, 0.5, 1])
    axes.legend(loc="upper left")


def weight_maps(maps: Mapping[str, ArrayLike], queries: ArrayLike, keys: ArrayLike) -> Figure:
    """Maps (n, m) of weights side by side by title: a row a query (n,), a column a key (m,), both sorted.

    All maps share one scale; its end is the weight that one in two hundred of the last map's weights exceeds.
    """
    queries, keys = np.asarray(queries), np.asarray(keys)
    arrays = {title: np.asarray(weights) for title, weights in maps.items()}
    top = float(np.quantile(list(arrays.values())[-1], 0.995))
    with style():
        figure = empty_figure(4.0 * len(arrays) + 0.7, 3.9)
        grid = figure.subplots(1, len(arrays), sharey=True, squeeze=False)[0]
        for axes, (title, weights) in zip(grid, arrays.items(), strict=True):
            picture = axes.imshow(weights, cmap="viridis", vmin=0, vmax=top, interpolation="nearest", aspect="auto")
            axes.grid(visible=False)
            axes.set(title=title, xlabel="key, a column each")
            axes.set_xticks(*_places(keys))
            axes.set_yticks(*_places(queries))
        grid[0].set_ylabel("query, a row each")
        bar = figure.colorbar(picture, ax=list(grid), extend="max", label="weight", aspect=30)
        bar.outline.set_visible(False)
    return figure


def _places(x: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Some rows or columns, and the x that they stand for."""
    shown = np.unique(np.linspace(0, len(x) - 1, 6).round().astype(int))
    return shown, [f"{x[place]:.1f}" for place in shown]


def errors(lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """Mean squared errors over training: a name of `ERRORS` → steps and errors.

    Where both are there, the gap between training and test error is marked.
    """
    with style():
        figure = empty_figure(7.0, 4.2)
        axes = figure.add_subplot()
        for name, (steps, values) in lines.items():
            label, color, dash = ERRORS[name]
            axes.plot(steps, values, color=color, linestyle=dash, label=label)
        if {"train", "test"} <= lines.keys():
            _mark_gap(axes, lines["train"], lines["test"])
        axes.set(xlabel="steps, each with all points", ylabel="mean squared error")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.legend()
    return figure


def _mark_gap(
    axes: Axes, train: tuple[Sequence[float], Sequence[float]], test: tuple[Sequence[float], Sequence[float]]
) -> None:
    """Train and test errors are of the same steps."""
    axes.fill_between(train[0], train[1], test[1], color=PALE, alpha=0.6, linewidth=0)
    axes.annotate(
        f"gap {test[1][-1] - train[1][-1]:.3f}",
        (train[0][-1], (test[1][-1] + train[1][-1]) / 2),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        annotation_clip=False,
    )
