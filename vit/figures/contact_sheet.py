"""Many small pictures with a few words under each."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit.figures.style import GREY, empty_figure, style

COLUMNS = 8
_WIDTH = 1.15
_LINE_LENGTH = 19


class Picture(NamedTuple):
    pixels: np.ndarray
    """uint8 (h, w, 3)."""
    title: str
    caption: str
    """Under it; lines that are too long are cut."""


def contact_sheet(groups: Mapping[str, Sequence[Picture]], nothing: str) -> Figure:
    """One heading a group, its pictures below it in rows of eight; a group without pictures says `nothing`."""
    rows = [row for heading, pictures in groups.items() for row in _rows(heading, pictures)]
    lines = max([picture.caption.count("\n") + 1 for group in groups.values() for picture in group], default=1)
    height = _WIDTH + 0.42 + 0.12 * lines
    heights = [height if pictures else 0.6 for _, pictures in rows]
    with style():
        figure = empty_figure(COLUMNS * _WIDTH, sum(heights))
        grid = figure.subplots(len(rows), COLUMNS, squeeze=False, gridspec_kw={"height_ratios": heights})
        for axes in grid.flat:
            axes.set_axis_off()
        for line, (heading, pictures) in zip(grid, rows, strict=True):
            words = line[0].annotate(
                heading if pictures or not heading else f"{heading}: {nothing}",
                (0, 1),
                (0, 16),
                xycoords="axes fraction",
                textcoords="offset points",
                fontsize=9.5,
                fontweight="bold",
                annotation_clip=False,
            )
            words.set_in_layout(False)  # a long heading would widen its column
            for axes, picture in zip(line, pictures, strict=False):
                _draw(axes, picture)
    return figure


def _rows(heading: str, pictures: Sequence[Picture]) -> list[tuple[str, Sequence[Picture]]]:
    starts = range(0, max(len(pictures), 1), COLUMNS)
    return [(heading if start == 0 else "", pictures[start : start + COLUMNS]) for start in starts]


def _draw(axes: Axes, picture: Picture) -> None:
    axes.imshow(picture.pixels, interpolation="nearest" if max(picture.pixels.shape[:2]) < 40 else "antialiased")
    axes.set_title(_short(picture.title), fontsize=7, loc="center", pad=2)
    caption = "\n".join(map(_short, picture.caption.split("\n")))
    axes.text(0.5, -0.05, caption, transform=axes.transAxes, ha="center", va="top", fontsize=5.8, color=GREY)


def _short(line: str) -> str:
    return textwrap.shorten(line, _LINE_LENGTH, placeholder="…") if " " in line else line[:_LINE_LENGTH]
