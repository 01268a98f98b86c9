"""What a legend says."""

from __future__ import annotations

from matplotlib.axes import Axes


def legend_texts(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert legend is not None, "the axes have no legend"
    return [text.get_text() for text in legend.get_texts()]
