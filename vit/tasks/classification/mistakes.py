"""A sheet of test images: the most confident mistakes and right predictions, with true and predicted class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vit.data.decoding import thumbnail
from vit.data.images import ImageSource
from vit.evaluation.examples import CONVENTION, confidences, most_confident
from vit.evaluation.head_columns import readable_class_names
from vit.evaluation.predictions import Predictions
from vit.figures.contact_sheet import COLUMNS, CaptionedImage, plot_contact_sheet
from vit.figures.style import save_figure

_NUM_MISTAKES, _NUM_RIGHT = 2 * COLUMNS, COLUMNS


def draw_mistakes(path: Path, predictions: Predictions, source: ImageSource) -> None:
    """Draw the sheet as a PNG, with names, classes and probabilities of its images beside it."""
    mistakes = most_confident(predictions.logits, predictions.labels, right=False, count=_NUM_MISTAKES)
    right = most_confident(predictions.logits, predictions.labels, right=True, count=_NUM_RIGHT)
    count = int((predictions.logits.argmax(axis=1) != predictions.labels).sum())
    total, names = len(predictions.labels), readable_class_names(predictions.class_names)
    chosen = {
        f"the most confident of {count:,} mistakes in {total:,} images: true class above, prediction below": mistakes,
        f"the most confident of {total - count:,} right predictions": right,
    }
    probabilities, predicted = confidences(predictions.logits), predictions.logits.argmax(axis=1)
    groups: dict[str, list[CaptionedImage]] = {}
    numbers: dict[str, list[dict[str, Any]]] = {}
    for heading, rows in chosen.items():
        groups[heading] = []
        numbers[heading] = []
        for row in rows:
            index, true, found = int(predictions.indices[row]), int(predictions.labels[row]), int(predicted[row])
            image = thumbnail(source.read(index))
            said = f"{probabilities[row]:.1%}" if true == found else f"{names[found]}\n{probabilities[row]:.1%}"
            groups[heading].append(CaptionedImage(image, names[true], said))
            numbers[heading].append(
                {
                    "file": source.name(index),
                    "true": names[true],
                    "predicted": names[found],
                    "probability": float(probabilities[row]),
                }
            )
    save_figure(plot_contact_sheet(groups, "none"), path, {"images": numbers, "conventions": CONVENTION})
