"""The images of a table that the model is least certain of, as one picture."""

from __future__ import annotations

import heapq
import os
from pathlib import Path

from vit.config import check
from vit.data.decoding import BrokenImage, read_rgb, thumbnail
from vit.figures.contact_sheet import COLUMNS, CaptionedImage, plot_contact_sheet
from vit.figures.style import save_figure
from vit.prediction.rows import Row
from vit.prediction.tables import read_table
from vit.wording import counted

CONVENTIONS = {"images": "in ascending order of the probability of the most likely class"}


def draw_least_certain(table: Path, picture: Path, count: int = 4 * COLUMNS) -> None:
    """Draw at most `count` images of a table as a PNG, with files, classes and probabilities as JSON beside it.

    ValueError for a table in which no image has a class.
    """
    rows = heapq.nsmallest(count, (row for row in read_table(table) if row.classes), key=lambda row: row.classes[0][1])
    check(bool(rows), "table", str(table), "it has no image with a class")
    shown = [(row, image) for row in rows if (image := _shown(row)) is not None]
    images = counted(len(shown), "image")
    heading = f"the {images} with the least certain prediction: file above, most likely class below"
    numbers = {"images": [row.as_dict() for row, _ in shown], "conventions": CONVENTIONS}
    save_figure(plot_contact_sheet({heading: [image for _, image in shown]}, "none"), picture, numbers)


def _shown(row: Row) -> CaptionedImage | None:
    """None for a file that cannot be read any more."""
    try:
        image = read_rgb(Path(row.file), row.file)
    except BrokenImage:
        return None
    label, probability = row.classes[0]
    name = os.fsencode(Path(row.file).name).decode("utf-8", "replace")  # no font has bytes that are no UTF-8
    return CaptionedImage(thumbnail(image), name, f"{label}\n{probability:.1%}")
