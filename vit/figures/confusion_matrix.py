"""Confusion matrix: how often each class is predicted for each true class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from vit.figures.style import BLUE, GREY, PALE, add_colorbar, check_shape, empty_figure, shorten, style, write_in_cell

_MAX_WITH_COUNTS, _MAX_WITH_NAMES = 20, 50  # classes
_MAX_NAME = 18
_PAIRS = 15


def plot_confusion_matrix(counts: NDArray[np.int64], class_names: Sequence[str]) -> Figure:
    """Draw counts (k, k): rows are the true class, columns the prediction; colour is the fraction of the row.

    With few classes, every cell has its count and every class its name. With many, the most frequent confusions are
    listed beside the map. A class without samples is a grey row.
    """
    counts = np.asarray(counts)
    check_shape("counts", counts, (len(class_names),) * 2, "a row and a column for each class")
    many = len(class_names) > _MAX_WITH_COUNTS
    side = float(np.clip(0.42 * len(class_names) + 1.6, 3.4, 7.0 if many else 8.5))
    with style():
        figure = empty_figure(side + 4.2 if many else side + 0.6, side)
        axes, beside = figure.subplots(1, 2, width_ratios=(side, 3.2)) if many else (figure.subplots(), None)
        totals = counts.sum(axis=1, keepdims=True)
        parts = np.where(totals > 0, counts / np.maximum(totals, 1), np.nan)
        axes.set_facecolor(PALE)
        image = axes.imshow(parts, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=1), interpolation="nearest")
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.set(xlabel="predicted class", ylabel="true class")
        bar = add_colorbar(figure, image, axes, shrink=0.6, ticks=[0, 0.05, 0.2, 0.5, 1], aspect=30)
        bar.set_label("share of the true class's images")
        bar.ax.set_yticklabels(["0", "5 %", "20 %", "50 %", "100 %"])
        _name_classes(axes, class_names)
        if beside is None:
            for row, column in np.argwhere(counts > 0):
                dark, fontsize = parts[row, column] > 0.4, 8 if len(counts) <= 12 else 6
                write_in_cell(axes, (row, column), str(counts[row, column]), on_dark=dark, fontsize=fontsize)
        else:
            _list_confusions(beside, counts, class_names)
    return figure


def _name_classes(axes: Axes, class_names: Sequence[str]) -> None:
    num = len(class_names)
    if num > _MAX_WITH_NAMES:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=10, integer=True))
        return
    names = [shorten(name, _MAX_NAME) for name in class_names]
    size = 8 if num <= _MAX_WITH_COUNTS else 5.5
    upright = num > _MAX_WITH_COUNTS or max(map(len, names)) > 3
    axes.set_xticks(range(num), names, rotation=90 if upright else 0, fontsize=size)
    axes.set_yticks(range(num), names, fontsize=size)
    axes.tick_params(length=0)


def _list_confusions(axes: Axes, counts: np.ndarray, class_names: Sequence[str]) -> None:
    """List the pairs confused most often, as bars; ties are ordered by class number."""
    mistakes = counts * (1 - np.eye(len(counts), dtype=counts.dtype))
    order = np.argsort(-mistakes, axis=None, kind="stable")[:_PAIRS]
    pairs = [(int(place) // len(counts), int(place) % len(counts)) for place in order]
    pairs = [pair for pair in pairs if mistakes[pair] > 0]
    values = [int(mistakes[pair]) for pair in pairs]
    axes.barh(range(len(pairs)), values, color=BLUE, alpha=0.3)
    for place, ((true, predicted), value) in enumerate(zip(pairs, values, strict=True)):
        text = " → ".join(shorten(class_names[number], _MAX_NAME) for number in (true, predicted))
        axes.text(0, place, f" {value}  {text}", va="center", fontsize=7)
    axes.set_title("most frequent: true → predicted" if pairs else "no mistakes", color=GREY)
    axes.set_ylim(_PAIRS - 0.5, -0.5)
    axes.set_axis_off()
