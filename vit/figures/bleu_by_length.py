"""BLEU of translated sentences, by their length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from vit.config import check
from vit.figures.style import BLUE, GREEN, MARKERS, ORANGE, PURPLE, RED, SKY, empty_figure, style

_COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)
MOST_MODELS = len(_COLORS)
_STEP_ASIDE = 0.08


def plot_bleu_by_length(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> Figure:
    """BLEU against the length of the source, one line with bootstrap intervals a model.

    `rows`: a model's name → its buckets, as `vit.tasks.translation.metrics.bleu_by_length` gives them, the same buckets
    for every model. A bucket without sentences is a gap.
    """
    check(0 < len(rows) <= MOST_MODELS, "rows", len(rows), f"between 1 and {MOST_MODELS} models can be told apart")
    buckets = [[(row["low"], row["high"], row["sentences"]) for row in of_model] for of_model in rows.values()]
    same = all(found == buckets[0] for found in buckets)
    check(same, "rows", list(rows), "the models must have the same buckets")
    with style():
        figure = empty_figure(max(4.2, 0.85 * len(buckets[0]) + 1.2), 3.4)
        axes = figure.subplots()
        for place, (name, of_model) in enumerate(rows.items()):
            middle, lower, upper = (np.array([row[key] for row in of_model]) for key in ("bleu", "lower", "upper"))
            axes.errorbar(
                np.arange(len(middle)) + _STEP_ASIDE * (place - (len(rows) - 1) / 2),
                middle,
                # a percentile interval need not hold the value itself
                yerr=np.maximum([middle - lower, upper - middle], 0),
                label=name,
                color=_COLORS[place],
                marker=MARKERS[place],
                markersize=4,
                capsize=2,
                elinewidth=0.9,
            )
        axes.set_xticks(range(len(buckets[0])), [_bucket_label(*bucket) for bucket in buckets[0]])
        axes.set(xlabel="words of the source; below, sentences of that length", ylabel="BLEU (95 % intervals)")
        axes.set_ylim(bottom=0)
        axes.legend()
    return figure


def _bucket_label(low: float, high: float, sentences: float) -> str:
    words = f"{low:.0f}" if high - low == 1 else f"{low:.0f}–{high - 1:.0f}"
    return f"{words}\n{sentences:.0f}"
