"""The one look of every figure, and how a figure is stored: a picture with the numbers behind it beside it.

Figures are built from `matplotlib.figure.Figure` itself: no pyplot, so no global state and no window system. Colours
are Okabe and Ito's (2008), told apart by colour-blind readers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
GREY, PALE = "#595959", "#D9D9D9"

_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.labelcolor": "#262626",
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.dpi": 150,
    "figure.facecolor": "white",
    "font.size": 9,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "savefig.dpi": 150,
    "text.parse_math": False,  # a class name may hold dollar signs
    "xtick.color": GREY,
    "xtick.labelsize": 8,
    "ytick.color": GREY,
    "ytick.labelsize": 8,
}


@contextmanager
def style() -> Iterator[None]:
    """The style, for everything drawn inside; the settings from before are back afterwards."""
    with matplotlib.rc_context(_STYLE):
        yield


def empty_figure(width: float, height: float) -> Figure:
    """A figure of that size in inches whose panels make room for their labels. Call it inside `style()`."""
    return Figure(figsize=(width, height), layout="constrained")


def count_axis(axes: Axes, label: str) -> None:
    """An x axis of large counts: 200 k, 1.5 M."""
    axes.set_xlabel(label)
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def save_figure(figure: Figure, path: str | Path, data: dict[str, Any]) -> None:
    """Write the picture to `path` and the numbers behind it as JSON beside it.

    `data` says in `conventions` what its numbers mean. Arrays become lists; a number that is not finite becomes null.
    """
    assert data.get("conventions"), "the numbers need their conventions"
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with style():
        figure.savefig(path)
    text = json.dumps(_plain(data), indent=1, ensure_ascii=False, allow_nan=False)
    path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if hasattr(value, "tolist"):  # numpy's arrays and scalars, and tensors
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
