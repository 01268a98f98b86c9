"""Average precision and F1 of every class of a multi-label classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from vit.figures.style import BLUE, ORANGE, empty_figure, shorten, style


def plot_average_precision(classes: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw a bar of average precision and a dot of F1 for each class, best class on top.

    `classes`: name → `average_precision` (None: no image has the class, drawn without a bar) and `f1`.
    """
    ordered = sorted(classes, key=lambda name: classes[name]["average_precision"] or 0.0)
    places = range(len(ordered))
    with style():
        figure = empty_figure(4.6, 1.2 + 0.22 * len(ordered))
        axes = figure.subplots()
        widths = [classes[name]["average_precision"] or 0.0 for name in ordered]
        axes.barh(places, widths, color=BLUE, alpha=0.6, label="average precision")
        axes.plot([classes[name]["f1"] for name in ordered], places, "o", color=ORANGE, markersize=4, label="F1")
        axes.set_yticks(places, [shorten(name, 24) for name in ordered])
        axes.set(xlim=(0, 1), xlabel="average precision, F1 at the thresholds")
        axes.legend(loc="lower left")
    return figure
