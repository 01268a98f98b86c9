"""Similarity of the blocks of two models as a map (Raghu et al. 2021, figures 1 and 2)."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from vit.figures.style import add_colorbar, as_floats, empty_figure, style


def plot_representation_similarity(similarity: ArrayLike, first: str, second: str, title: str = "") -> Figure:
    """Draw `similarity` (l, k): rows are blocks of `first` from the bottom up, columns of `second`, counted from 1."""
    values = as_floats(similarity)
    rows, columns = values.shape
    with style():
        figure = empty_figure(4.6, min(7.0, max(2.4, 3.4 * rows / columns + 0.8)))
        axes = figure.subplots()
        edges = (0.5, columns + 0.5, 0.5, rows + 0.5)
        image = axes.imshow(
            values, cmap="magma", vmin=0, vmax=1, origin="lower", extent=edges, interpolation="nearest", aspect="auto"
        )
        axes.grid(visible=False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
        axes.set(xlabel=f"{second}: block", ylabel=f"{first}: block", title=title)
        add_colorbar(figure, image, axes, shrink=0.8, aspect=25, label="CKA (unbiased)")
    return figure
