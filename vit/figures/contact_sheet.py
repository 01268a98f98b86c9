"""Contact sheet: many small images with a caption under each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from vit.figures.style import GREY, empty_figure, shorten, style

COLUMNS = 8
_SIDE, _GAP = 1.0, 0.15  # inches of an image and between images
_HEADING, _TITLE, _LINE = 0.3, 0.17, 0.105  # inches of a line of each kind of text
_TITLE_LENGTH = 17
_LINE_LENGTH = 20
_CAPTION: Any = {
    **{"xycoords": "axes fraction", "textcoords": "offset points", "ha": "center", "va": "top"},
    **{"fontsize": 6, "linespacing": 1.1, "color": GREY},
}


class CaptionedImage(NamedTuple):
    """An image of a contact sheet."""

    pixels: np.ndarray
    """uint8 (h, w, 3)."""
    title: str
    caption: str
    """Lines that are too long are cut."""


def plot_contact_sheet(groups: Mapping[str, Sequence[CaptionedImage]], nothing: str) -> Figure:
    """Draw each group under its heading, in rows of eight; a group without images says `nothing`."""
    height = sum(_HEADING + sum(map(_row_height, _rows(images))) for images in groups.values())
    width = COLUMNS * (_SIDE + _GAP)
    with style():
        figure = empty_figure(width, height)
        figure.set_layout_engine("none")  # every position is given
        top = height
        for heading, images in groups.items():
            words = heading if images else f"{heading}: {nothing}"
            figure.text(0.05 / width, (top - 0.1) / height, words, fontsize=9, fontweight="bold", va="top")
            top -= _HEADING
            for row in _rows(images):
                for column, image in enumerate(row):
                    left, bottom = _GAP / 2 + column * (_SIDE + _GAP), top - _TITLE - _SIDE
                    place = (left / width, bottom / height, _SIDE / width, _SIDE / height)
                    axes = figure.add_axes(place)
                    small = max(image.pixels.shape[:2]) < 40
                    axes.imshow(image.pixels, interpolation="nearest" if small else "antialiased")
                    axes.set_axis_off()
                    axes.set_title(shorten(image.title, _TITLE_LENGTH), fontsize=7, loc="center", pad=2)
                    caption = "\n".join(shorten(line, _LINE_LENGTH) for line in image.caption.split("\n"))
                    axes.annotate(caption, (0.5, 0), (0, -2), **_CAPTION)
                top -= _row_height(row)
    return figure


def _rows(images: Sequence[CaptionedImage]) -> list[Sequence[CaptionedImage]]:
    return [images[start : start + COLUMNS] for start in range(0, len(images), COLUMNS)]


def _row_height(row: Sequence[CaptionedImage]) -> float:
    lines = max(image.caption.count("\n") + 1 for image in row)
    return _TITLE + _SIDE + _LINE * (lines + 0.5)
