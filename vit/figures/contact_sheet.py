"""Many small pictures with a few words under each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit.figures.style import GREY, empty_figure, style

COLUMNS = 8
_SIDE = 1.0
_GAP = 0.15
_HEADING = 0.3
_TITLE = 0.17
_LINE = 0.105
"""Inches: a picture's side, between pictures, and of a line of each kind of words."""
_TITLE_LENGTH = 17
_LINE_LENGTH = 20


class Picture(NamedTuple):
    pixels: np.ndarray
    """uint8 (h, w, 3)."""
    title: str
    caption: str
    """Under it; lines that are too long are cut."""


def contact_sheet(groups: Mapping[str, Sequence[Picture]], nothing: str) -> Figure:
    """One heading a group, its pictures below it in rows of eight; a group without pictures says `nothing`."""
    height = sum(_HEADING + sum(map(_row_height, _rows(pictures))) for pictures in groups.values())
    width = COLUMNS * (_SIDE + _GAP)
    with style():
        figure = empty_figure(width, height)
        figure.set_layout_engine("none")  # every place is given
        top = height
        for heading, pictures in groups.items():
            words = heading if pictures else f"{heading}: {nothing}"
            figure.text(0.05 / width, (top - 0.1) / height, words, fontsize=9, fontweight="bold", va="top")
            top -= _HEADING
            for row in _rows(pictures):
                for column, picture in enumerate(row):
                    left, bottom = _GAP / 2 + column * (_SIDE + _GAP), top - _TITLE - _SIDE
                    place = (left / width, bottom / height, _SIDE / width, _SIDE / height)
                    _draw(figure.add_axes(place), picture)
                top -= _row_height(row)
    return figure


def _rows(pictures: Sequence[Picture]) -> list[Sequence[Picture]]:
    return [pictures[start : start + COLUMNS] for start in range(0, len(pictures), COLUMNS)]


def _row_height(row: Sequence[Picture]) -> float:
    lines = max(picture.caption.count("\n") + 1 for picture in row)
    return _TITLE + _SIDE + _LINE * (lines + 0.5)


def _draw(axes: Axes, picture: Picture) -> None:
    small = max(picture.pixels.shape[:2]) < 40
    axes.imshow(picture.pixels, interpolation="nearest" if small else "antialiased")
    axes.set_axis_off()
    axes.set_title(_short(picture.title, _TITLE_LENGTH), fontsize=7, loc="center", pad=2)
    caption = "\n".join(_short(line, _LINE_LENGTH) for line in picture.caption.split("\n"))
    size = {"fontsize": 6, "linespacing": 1.1, "color": GREY}
    offset = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "center", "va": "top"}
    axes.annotate(caption, (0.5, 0), (0, -2), **offset, **size)  # type: ignore[arg-type]


def _short(line: str, length: int) -> str:
    return line if len(line) <= length else f"{line[: length - 1]}…"
