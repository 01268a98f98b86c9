"""Accuracy against the severity of corruptions: a panel for each kind, a line for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vit.figures.style import COLORS, empty_figure, panel_grid, shorten, style

_COLUMNS = 5
_DASHES = ("-", "--", ":", "-.")
"""The next one where the colours begin again."""


def plot_corruption_accuracy(models: Mapping[str, Mapping[str, Sequence[float]]], clean: Mapping[str, float]) -> Figure:
    """Draw the accuracies `models[name][kind]` at severities 1, 2, … and `clean[name]` at severity 0."""
    kinds = list(next(iter(models.values())))
    rows = -(-len(kinds) // _COLUMNS)
    with style():
        figure = empty_figure(8.2, 1.55 * rows + 0.6)
        grid = panel_grid(figure, len(kinds), _COLUMNS, sharex=True, sharey=True)
        for axes, kind in zip(grid, kinds, strict=True):
            for place, (name, accuracies) in enumerate(models.items()):
                values = [clean[name], *accuracies[kind]]
                color, dash = COLORS[place % len(COLORS)], _DASHES[place // len(COLORS) % len(_DASHES)]
                label = shorten(name, 44)
                axes.plot(range(len(values)), values, dash, color=color, marker="o", markersize=3, label=label)
            axes.set_title(kind.replace("_", " "), fontsize=8)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        highest = max(*clean.values(), *(max(values) for found in models.values() for values in found.values()))
        grid[0].set_ylim(0, 1.06 * highest or 1)
        figure.supxlabel("severity; 0: clean", fontsize=9)
        figure.supylabel("top-1 accuracy", fontsize=9)
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=min(len(models), 2))
    return figure
