"""Change by eight bits in a single linear layer, by its block and kind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from vit.config import check
from vit.figures.style import COLORS, GREY, MARKERS, as_floats, check_shape, empty_figure, style

_ASIDE = 0.08
"""Blocks between the intervals of the kinds, which would cover each other."""


def plot_quantization_sensitivity(
    layers: Sequence[str], logit_change: ArrayLike, lost: ArrayLike, *, interval: ArrayLike
) -> Figure:
    """Draw, for layers named `blocks.BLOCK.KIND`, the change of the logits and the points of accuracy lost.

    `logit_change` and `lost` (l,): fractions. `interval` (2, l): the ends of the 95 % interval of `lost`.
    """
    change, points, ends = 100 * as_floats(logit_change), 100 * as_floats(lost), 100 * as_floats(interval)
    for name, values in (("logit_change", change), ("lost", points)):
        check_shape(name, values, (len(layers),), "a number for each layer")
    check_shape("interval", ends, (2, len(layers)), "two ends for each layer")
    named = [name.split(".", 2) for name in layers]
    check(all(len(parts) == 3 and parts[1].isdecimal() for parts in named), "layers", layers[:1], "blocks.BLOCK.KIND")
    blocks = np.array([int(block) + 1 for _, block, _ in named])
    kinds = list(dict.fromkeys(kind for *_, kind in named))
    check(len(kinds) <= len(COLORS), "layers", len(kinds), f"at most {len(COLORS)} kinds can be told apart")
    with style():
        figure = empty_figure(7.4, 3.2)
        left, right = figure.subplots(1, 2)
        for number, kind in enumerate(kinds):
            mine = np.array([each == kind for *_, each in named])
            look = {"color": COLORS[number], "marker": MARKERS[number], "markersize": 4}
            places = blocks[mine] + _ASIDE * (number - (len(kinds) - 1) / 2)
            left.plot(blocks[mine], change[mine], label=kind, **look)
            right.plot(places, points[mine], linestyle="", **look)
            right.vlines(places, ends[0, mine], ends[1, mine], color=COLORS[number], alpha=0.4, linewidth=1.5)
        right.axhline(0, color=GREY, linewidth=0.8)
        left.set_ylim(bottom=0)
        left.set(xlabel="block", ylabel="change of the logits (%)")
        right.set(xlabel="block", ylabel="accuracy lost (points)")
        for axes in (left, right):
            axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(kinds))
    return figure
