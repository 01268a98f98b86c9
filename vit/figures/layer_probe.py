"""Accuracy of a linear probe by depth (Raghu et al. 2021, figure 13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from vit.config import check
from vit.figures.style import BLUE, GREEN, ORANGE, PURPLE, as_floats, check_shape, empty_figure, style

_COLORS = (BLUE, ORANGE, GREEN, PURPLE)
_ASIDE = 0.06
"""Blocks between the intervals of two lines, which would cover each other."""


def plot_layer_probe(
    accuracy: Mapping[str, Sequence[float]],
    title: str = "",
    *,
    intervals: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Figure:
    """Draw a line for each kind of features that a probe reads, a point for each block.

    `intervals`: by the same names, the ends of each point's 95 % interval. Accuracies are fractions.
    """
    check(len(accuracy) <= len(_COLORS), "accuracy", len(accuracy), f"at most {len(_COLORS)} lines can be told apart")
    with style():
        figure = empty_figure(4.6, 3.1)
        axes = figure.subplots()
        for number, ((name, values), color) in enumerate(zip(accuracy.items(), _COLORS, strict=False)):
            aside = _ASIDE * (number - (len(accuracy) - 1) / 2)
            places = [place + aside for place in range(1, len(values) + 1)]
            axes.plot(places, values, color=color, marker="o", markersize=4, label=name)
            if intervals is not None:
                ends = as_floats(intervals[name])
                check_shape("intervals", ends, (len(values), 2), f"two ends for each block of {name!r}")
                axes.vlines(places, ends[:, 0], ends[:, 1], color=color, alpha=0.45, linewidth=2.0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlim(0.5, max(map(len, accuracy.values())) + 0.5)
        axes.set(xlabel="block", ylabel="accuracy of a linear probe", title=title)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
