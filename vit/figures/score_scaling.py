"""Scaling of attention scores: their variance, the softmax's gradient and learning, against the width of vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from vit.config import check
from vit.figures.style import BLUE, GREEN, GREY, ORANGE, empty_figure, style

_COLORS = (BLUE, ORANGE, GREEN)
Series = Mapping[str, Sequence[float]]


def plot_score_scaling(
    widths: Sequence[int], variances: Series, gradients: Series, learned: Series, chance: float
) -> Figure:
    """Draw series by name, each with a value for every width; a score has the same colour in every panel.

    `learned` is the weight on the right key after training, `chance` that of uniform weights.
    """
    names = list(dict.fromkeys([*variances, *gradients, *learned]))
    check(len(names) <= len(_COLORS), "variances", len(names), f"at most {len(_COLORS)} scores can be told apart")
    colors = dict(zip(names, _COLORS, strict=False))
    with style():
        figure = empty_figure(9.6, 3.1)
        left, middle, right = figure.subplots(1, 3)
        for axes, series, title in (
            (left, variances, "variance of the scores"),
            (middle, gradients, "gradient of the softmax"),
            (right, learned, "weight on the right key, learned"),
        ):
            for name, values in series.items():
                axes.plot(widths, values, color=colors[name], marker="o", markersize=4, label=name)
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(widths))
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_xlabel("width d of queries and keys")
            axes.set_title(title)
        for axes in (left, middle):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        middle.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        right.axhline(chance, color=GREY, linewidth=0.8, linestyle="--", label="chance")
        right.set_ylim(0, 1)
        lines = {line.get_label(): line for axes in (left, middle, right) for line in axes.lines}
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines))
    return figure
