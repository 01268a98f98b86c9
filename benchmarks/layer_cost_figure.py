"""Time of layers against the length of the sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.growth_figure import format_duration
from vit.figures.style import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, empty_figure, style

_COLORS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
_MARKERS = "osD^vX"


def layer_cost(
    lengths: Sequence[int], seconds: Mapping[str, Sequence[float]], labels: Mapping[str, str] | None = None
) -> Figure:
    """Draw seconds per forward pass, one line for each layer, on log-log axes; `labels` replace the names."""
    assert len(seconds) <= len(_COLORS), f"at most {len(_COLORS)} layers, not {len(seconds)}"
    with style():
        figure = empty_figure(6.0, 4.2)
        axes = figure.add_subplot()
        for place, (name, values) in enumerate(seconds.items()):
            label = (labels or {}).get(name, name)
            axes.plot(lengths, values, color=_COLORS[place], marker=_MARKERS[place], markersize=4, label=label)
        axes.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="time of a forward pass")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(format_duration))
        axes.legend()
    return figure
