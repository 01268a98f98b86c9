"""Where a model looked in the source while it wrote each token (Bahdanau et al. 2015, figure 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vit.figures.style import empty_figure, style

_INCHES_A_TOKEN = 0.26


def alignment(weights: ArrayLike, source_tokens: Sequence[str], target_tokens: Sequence[str]) -> Figure:
    """Weights (m, n) as a map: a row for each target token, a column for each source token, dark where it looked."""
    weights = np.asarray(weights, dtype=np.float64)
    sizes = len(target_tokens), len(source_tokens)
    assert weights.shape == sizes, f"{weights.shape} weights for {sizes[0]} target and {sizes[1]} source tokens"
    with style():
        figure = empty_figure(max(4.0, _INCHES_A_TOKEN * sizes[1] + 2.2), max(2.6, _INCHES_A_TOKEN * sizes[0] + 1.4))
        axes = figure.subplots()
        picture = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.set_xticks(range(sizes[1]), [token.strip() for token in source_tokens], rotation=90)
        axes.set_yticks(range(sizes[0]), [token.strip() for token in target_tokens])
        axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
        axes.set(xlabel="source", ylabel="translation")
        axes.xaxis.set_label_position("top")
        bar = figure.colorbar(picture, ax=axes, shrink=0.6, aspect=25, ticks=[0, 0.5, 1], label="weight")
        bar.outline.set_visible(False)
    return figure
