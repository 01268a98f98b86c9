"""Accuracy as images get worse: one panel a kind of corruption, one line a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vit.figures.style import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, empty_figure, style

_COLORS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
_COLUMNS = 5


def corruption_accuracy(models: Mapping[str, Mapping[str, Sequence[float]]], clean: Mapping[str, float]) -> Figure:
    """`models[name][kind]` are accuracies at strengths 1, 2, …; `clean[name]` that on clean images, at strength 0."""
    kinds = list(next(iter(models.values())))
    rows = -(-len(kinds) // _COLUMNS)
    with style():
        figure = empty_figure(8.2, 1.55 * rows + 0.6)
        grid = figure.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False)
        for axes in grid.flat[len(kinds) :]:
            axes.set_axis_off()
        for axes, kind in zip(grid.flat, kinds, strict=False):
            for place, (name, accuracies) in enumerate(models.items()):
                values = [clean[name], *accuracies[kind]]
                color = _COLORS[place % len(_COLORS)]
                axes.plot(range(len(values)), values, color=color, marker="o", markersize=3, label=name)
            axes.set_title(kind.replace("_", " "), fontsize=8)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        highest = max(*clean.values(), *(max(values) for found in models.values() for values in found.values()))
        grid[0, 0].set_ylim(0, 1.06 * highest or 1)
        figure.supxlabel("strength; 0: clean", fontsize=9)
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=min(len(models), 4))
    return figure
