"""The style shared by all figures, drawing helpers, and saving a figure with its data.

Figures are built from `matplotlib.figure.Figure` itself: no pyplot, so no global state and no window system. Colours
are those of Okabe and Ito (2008), which colour-blind readers can tell apart.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure as Figure  # exported: other packages do not import matplotlib
from matplotlib.figure import FigureBase
from matplotlib.ticker import EngFormatter, MaxNLocator

from vit.config import check

BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
GREY, PALE = "#595959", "#D9D9D9"
COLORS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
MARKERS = "osD^vX"
"""The colour and the marker of each line where lines stand for models or recipes."""

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
    """Apply the style to everything drawn inside, then restore the previous settings."""
    with matplotlib.rc_context(_STYLE):
        yield


def empty_figure(width: float, height: float) -> Figure:
    """Create a figure of this size in inches whose panels make room for their labels. Call it inside `style()`."""
    return Figure(figsize=(width, height), layout="constrained")


def panel_grid(figure: FigureBase, count: int, columns: int, **options: Any) -> list[Axes]:
    """Add `count` panels in rows of `columns`; what is left of the last row stays empty."""
    grid = figure.subplots(-(-count // columns), columns, squeeze=False, **options)
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    return list(grid.flat[:count])


def hide_frame(axes: Axes) -> None:
    """Remove grid, spines and tick marks, as suits an image."""
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def add_colorbar(figure: FigureBase, image: ScalarMappable, axes: Axes | Sequence[Axes], **options: Any) -> Colorbar:
    """Add a colour bar without an outline beside the panels `axes`."""
    bar = figure.colorbar(image, ax=axes, **options)
    bar.outline.set_visible(False)
    return bar


def write_in_cell(axes: Axes, cell: tuple[int, ...], text: str, *, on_dark: bool, fontsize: float) -> None:
    """Write into a `cell` (row, column) of an image, in white on a dark one."""
    color = "white" if on_dark else "#262626"
    axes.text(cell[1], cell[0], text, ha="center", va="center", color=color, fontsize=fontsize)


def as_floats(values: Any) -> np.ndarray:
    """Convert array, tensor or list to a float64 array."""
    return np.asarray(values, dtype=np.float64)


def check_shape(name: str, values: np.ndarray, expected: tuple[int, ...], meaning: str) -> None:
    """ValueError for an array of another shape, which `meaning` explains."""
    check(values.shape == expected, name, values.shape, f"the shape must be {expected}: {meaning}")


def shorten(text: str, length: int) -> str:
    """Cut a text to `length` characters, the last of which is then an ellipsis."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def signed_points(fraction: float, _: object = None) -> str:
    """Format a difference of fractions in percentage points with its sign, as a tick formatter does."""
    points = round(100 * fraction, 6)  # a tick at zero is often 1e-17
    return f"{points:+.3g}".replace("-", "−") if points else "0"


def count_axis(axes: Axes, label: str) -> None:
    """Label an x axis of large counts: 200 k, 1.5 M."""
    axes.set_xlabel(label)
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def save_figure(figure: Figure, path: str | Path, data: dict[str, Any]) -> None:
    """Write the figure to `path` and its data as JSON with the same name beside it.

    `data["conventions"]` says what the numbers mean. Arrays become lists; a number that is not finite becomes null.
    """
    assert data.get("conventions"), "the data need their conventions"
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # of an emoji in a class name, drawn as a box
        figure.savefig(path)
    text = json.dumps(_json_value(data), indent=1, ensure_ascii=False, allow_nan=False)
    path.with_suffix(".json").write_text(text + "\n", encoding="utf-8", errors="backslashreplace")  # odd file names


def _json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(entry) for entry in value]
    if hasattr(value, "tolist"):  # numpy's arrays and scalars, and tensors
        return _json_value(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
