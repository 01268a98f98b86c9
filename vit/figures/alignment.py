"""Alignment of a translation: attention over the source for each target token (Bahdanau et al. 2015, figure 3)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vit.figures.style import add_colorbar, as_floats, check_shape, empty_figure, hide_frame, style

_INCHES_PER_TOKEN = 0.26


def plot_alignment(weights: ArrayLike, source_tokens: Sequence[str], target_tokens: Sequence[str]) -> Figure:
    """Draw weights (m, n): a row for each target token, a column for each source token."""
    weights = as_floats(weights)
    sizes = len(target_tokens), len(source_tokens)
    check_shape("weights", weights, sizes, f"{sizes[0]} target and {sizes[1]} source tokens")
    with style():
        figure = empty_figure(
            max(4.0, _INCHES_PER_TOKEN * sizes[1] + 2.2), max(2.6, _INCHES_PER_TOKEN * sizes[0] + 1.4)
        )
        axes = figure.subplots()
        image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        hide_frame(axes)
        axes.set_xticks(range(sizes[1]), [token.strip() for token in source_tokens], rotation=90)
        axes.set_yticks(range(sizes[0]), [token.strip() for token in target_tokens])
        axes.tick_params(top=False, labeltop=True, bottom=False, labelbottom=False)
        axes.set(xlabel="source", ylabel="translation")
        axes.xaxis.set_label_position("top")
        add_colorbar(figure, image, axes, shrink=0.6, aspect=25, ticks=[0, 0.5, 1], label="weight")
    return figure
