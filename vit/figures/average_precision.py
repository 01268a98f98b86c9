"""Average precision of every class of a multi-label classifier: with F1, or of several models with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from vit.config import check
from vit.figures.intervals import Estimate
from vit.figures.style import BLUE, COLORS, MARKERS, ORANGE, empty_figure, shorten, style

MOST_MODELS = len(COLORS)


def plot_average_precision(classes: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw a bar of average precision and a dot of F1 for each class, best class on top.

    `classes`: name → `average_precision` (None: no image has the class, drawn without a bar) and `f1`.
    """
    ordered = sorted(classes, key=lambda name: classes[name]["average_precision"] or 0.0)
    places = range(len(ordered))
    with style():
        figure = empty_figure(4.6, 1.4 + 0.22 * len(ordered))
        axes = figure.subplots()
        widths = [classes[name]["average_precision"] or 0.0 for name in ordered]
        axes.barh(places, widths, color=BLUE, alpha=0.6, label="average precision")
        axes.plot([classes[name]["f1"] for name in ordered], places, "o", color=ORANGE, markersize=4, label="F1")
        axes.set_yticks(places, [shorten(name, 24) for name in ordered])
        axes.set(xlim=(0, 1), xlabel="average precision, F1 at the thresholds")
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def plot_compared_precision(models: Mapping[str, Sequence[Estimate]]) -> Figure:
    """Draw a group of dots with intervals for each class, one a model: the first class on top, in the first model's
    order.

    `models`: name → an estimate for each class, the same classes for every model. ValueError for other classes, and
    for more models than there are colours.
    """
    check(0 < len(models) <= MOST_MODELS, "models", list(models), f"between 1 and {MOST_MODELS} can be told apart")
    classes = [estimate.name for estimate in next(iter(models.values()))]
    for name, estimates in models.items():
        found = [estimate.name for estimate in estimates]
        check(found == classes, "models", name, f"its classes must be the first model's: {', '.join(classes)}")
    step = 0.8 / len(models)
    with style():
        figure = empty_figure(6.4, 1.2 + (0.12 + 0.15 * len(models)) * len(classes))
        axes = figure.subplots()
        for number, (name, estimates) in enumerate(models.items()):
            color, aside = COLORS[number], step * (number - (len(models) - 1) / 2)
            for place, each in enumerate(estimates):
                axes.hlines(place + aside, each.low, each.high, color=color, linewidth=2.0)
            values = [each.value for each in estimates]
            places = [place + aside for place in range(len(estimates))]
            label = shorten(name, 44)
            axes.plot(values, places, MARKERS[number], color=color, markersize=5, label=label)
        axes.set_yticks(range(len(classes)), [shorten(name, 32) for name in classes])
        axes.set(xlabel="average precision, 95 % intervals", ylim=(len(classes) - 0.5, -0.5))
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        figure.legend(loc="outside upper left", ncols=2)
    return figure
