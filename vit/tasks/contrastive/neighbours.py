"""Pictures of images with the training images that their frozen features are nearest to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vit.config import DataConfig
from vit.data.decoding import thumbnail
from vit.data.images import ImageSource
from vit.data.loading import EvalLoader
from vit.engine import rank_and_world_size
from vit.evaluation.head_columns import readable_class_names
from vit.figures.contact_sheet import COLUMNS, CaptionedImage, plot_contact_sheet
from vit.figures.style import save_figure
from vit.tasks.contrastive.metrics import Evaluator
from vit.tasks.encoder_report import pictured

CONVENTIONS = {
    "similarity": "cosine of the encoder's features; the class, which no training used, stands above an image",
    "training images": "those among which the neighbours are searched (contrastive.knn_images)",
}


@dataclass(frozen=True)
class NearestImages:
    """Some images of a split, each with its nearest training images: rows of the sheet, and their numbers."""

    rows: dict[str, list[CaptionedImage]]
    numbers: dict[str, list[dict[str, Any]]]

    def save(self, path: Path) -> None:
        """Draw them; names, classes and similarities are kept beside the figure."""
        numbers = {"images": self.numbers, "conventions": CONVENTIONS}
        save_figure(plot_contact_sheet(self.rows, "none"), path, numbers)


def find_neighbours(
    evaluator: Evaluator, model: nn.Module, loader: EvalLoader, data: DataConfig, readable: Tensor
) -> NearestImages:
    """Search the training images nearest to a few `readable` ones, of different classes where there are as many."""
    accelerator = evaluator.accelerator
    place = rank_and_world_size(accelerator)
    few = EvalLoader(pictured(loader.split.source, readable), loader.preprocessing, data, **place)
    queries, nearest, similarities = evaluator.neighbours.nearest(evaluator.bare(model).encoder, few, COLUMNS - 1)
    test, train = loader.split.source, evaluator.neighbours.loader.split.source
    found = NearestImages({}, {})
    for query, row, values in zip(queries.tolist(), nearest.tolist(), similarities.tolist(), strict=True):
        heading = test.name(query)
        found.rows[heading] = [_captioned(test, query, "held out")]
        found.numbers[heading] = []
        for index, similarity in zip(row, values, strict=True):
            found.rows[heading].append(_captioned(train, index, f"{similarity:.3f}"))
            numbers = {"file": train.name(index), "class": _class_of(train, index), "similarity": similarity}
            found.numbers[heading].append(numbers)
    return found


def _captioned(source: ImageSource, index: int, caption: str) -> CaptionedImage:
    return CaptionedImage(thumbnail(source.read(index)), _class_of(source, index), caption)


def _class_of(source: ImageSource, index: int) -> str:
    return readable_class_names(source.class_names)[int(source.labels[index])]
