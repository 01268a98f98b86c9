"""Loss, accuracy and learning rate over a training run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, MaxNLocator, PercentFormatter

from vit.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, count_axis, empty_figure, style

_MAX_WITH_MARKERS = 50
_LEAST_RANGE = 0.05
"""The accuracy axis spans this at least, lest a few images look like a trend."""
_PARTS = 25
"""The running mean is taken over this part of the records."""
CONVENTIONS = {
    "images_seen": "training images shown so far, over all processes",
    "train.loss": "mean since the previous record, of the loss that is optimised (mixing and smoothing included)",
    "train.accuracy": "fraction since the previous record, against the label with the larger weight",
    "val.nll": "mean of -log p(label) over the validation set, nats",
    "val.top1": "fraction of the validation set; `ema.` the same with the averaged weights",
    "val.loss": "mean over the validation set of the loss that is optimised, where that is the metric",
    "val.knn": "accuracy of the frozen features by weighted nearest neighbours (20, cosine) among training images",
    "val.map": "mean average precision over the validation set, of several labels an image",
    "lr": "scheduled rate before any layer-wise factor",
    "rates": "samples seen before a step, and its rate, over the whole schedule; null for a run that was continued to "
    "another number of epochs, whose logged rates are drawn",
}
_PANELS: dict[str, dict[str, tuple[str | None, str]]] = {
    "loss": {
        "train.loss": ("training", BLUE),
        "val.nll": ("validation", ORANGE),
        "ema.val.nll": ("validation, averaged weights", GREEN),
        "val.loss": ("validation", ORANGE),
        "ema.val.loss": ("validation, averaged weights", GREEN),
    },
    "accuracy": {
        "train.accuracy": ("training", BLUE),
        "val.top1": ("validation", ORANGE),
        "ema.val.top1": ("validation, averaged weights", GREEN),
        "val.token_accuracy": ("validation", ORANGE),
        "ema.val.token_accuracy": ("validation, averaged weights", GREEN),
    },
    "k-NN accuracy": {
        "val.knn": ("validation", ORANGE),
        "ema.val.knn": ("validation, averaged weights", GREEN),
    },
    "mAP": {
        "val.map": ("validation", ORANGE),
        "ema.val.map": ("validation, averaged weights", GREEN),
    },
    "BLEU": {
        "val.bleu": ("validation, greedy", ORANGE),
        "ema.val.bleu": ("validation, greedy, averaged weights", GREEN),
    },
    "learning rate": {"lr": (None, PURPLE)},
}


def plot_learning_curves(
    history: Sequence[Mapping[str, Any]], rates: tuple[Sequence[float], Sequence[float]] | None = None
) -> Figure:
    """Draw a panel each for loss, accuracy, k-NN accuracy, mAP, BLEU and learning rate against the samples seen.

    `rates`: samples seen before every step, and its rate; without them the rates of the records are drawn.
    `history`: the records of `metrics.jsonl`, in which any key may be missing; a panel without numbers is left out.
    Many noisy training records are drawn pale, with their running mean on top. Accuracies are fractions.
    """
    panels = [name for name, keys in _PANELS.items() if any(_has(history, key) for key in keys)]
    x_key = _x_key(history)
    with style():
        figure = empty_figure(3.9 * max(len(panels), 1), 3.1)
        if not panels:
            axes = figure.add_subplot()
            axes.set_axis_off()
            axes.text(0.5, 0.5, "nothing recorded yet", ha="center", va="center", color=GREY, transform=axes.transAxes)
        for place, name in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), place + 1)
            axes.set_title(name)
            for key, (label, color) in _PANELS[name].items():
                if key == "lr" and rates is not None:
                    axes.plot(*rates, color=color)
                elif _has(history, key):
                    _draw(axes, *_series(history, x_key, key), color, label, noisy=key.startswith("train."))
            _finish(axes, name, x_key)
    return figure


def _has(history: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(_number(record.get(key)) is not None for record in history)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _x_key(history: Sequence[Mapping[str, Any]]) -> str:
    """Choose a count that every record has as the x axis; the records' own order as a last resort."""
    for key in ("images_seen", "sentences_seen", "points_seen", "step", "epoch"):
        if history and all(_number(record.get(key)) is not None for record in history):
            return key
    return "record"


def _series(history: Sequence[Mapping[str, Any]], x_key: str, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Take x and y of the records that have the key; a value that is not finite (in JSON: null) leaves a gap."""
    rows = [(record.get(x_key, place), record[key]) for place, record in enumerate(history) if key in record]
    x = np.array([float(row[0]) for row in rows])
    return x, np.array([math.nan if (value := _number(row[1])) is None else value for row in rows])


def _draw(axes: Axes, x: np.ndarray, y: np.ndarray, color: str, label: str | None, noisy: bool) -> None:
    few = len(y) <= _MAX_WITH_MARKERS
    if noisy and not few:
        axes.plot(x, y, color=color, alpha=0.25, linewidth=0.8)
        y = _running_mean(y, len(y) // _PARTS)
    axes.plot(x, y, color=color, label=label, marker="o" if few else None, markersize=3)


def _running_mean(y: np.ndarray, window: int) -> np.ndarray:
    """Compute a centred mean over up to `window` points; gaps stay gaps and are left out of the means."""
    finite = np.isfinite(y)
    kernel = np.ones(window)
    total = np.convolve(np.where(finite, y, 0.0), kernel, mode="same")
    count = np.convolve(finite.astype(float), kernel, mode="same")
    return np.where(finite, total / np.maximum(count, 1), np.nan)


def _finish(axes: Axes, name: str, x_key: str) -> None:
    count_axis(axes, x_key.replace("_", " "))
    if name in ("accuracy", "k-NN accuracy", "mAP"):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        low, high = axes.get_ylim()
        missing = max(0.0, _LEAST_RANGE - (high - low)) / 2
        axes.set_ylim(max(low - missing, -0.005), min(high + missing, 1.005))
    if name == "BLEU":
        axes.set_ylim(0, max(axes.get_ylim()[1], 1))
    if name == "learning rate":
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    elif len(axes.get_legend_handles_labels()[1]) > 0:
        axes.legend()
