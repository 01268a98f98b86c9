"""The plan of contrastive learning, and its results: loss and neighbours of the test set, model card."""

from __future__ import annotations

from typing import Any

from torch import nn

from vit.config import DataConfig
from vit.data.augmented import AugmentingLoader
from vit.data.loading import EvalLoader
from vit.tasks.contrastive.metrics import Evaluator
from vit.tasks.contrastive.neighbours import find_neighbours
from vit.tasks.contrastive.training import ContrastiveLearning
from vit.tasks.encoder_report import NEXT, EncoderReport, EncoderResult, headline

__all__ = ["NEXT", "ContrastiveReport", "headline", "measure", "open_report"]


class ContrastiveReport(EncoderReport):
    """The `Report` of a `ContrastiveLearning`."""

    picture = "neighbours"
    title = "an encoder trained on {dataset} by contrastive learning"
    beside = "projection"
    counts = "of both views, without the projection"

    def __init__(self, task: ContrastiveLearning) -> None:
        super().__init__(task)
        self.task = task

    @property
    def loss(self) -> str:
        together = min(self.task.config.data.batch_size, self.test_loader.num_total)
        return f"of finding an image's other view among those of at most {together} images"

    def describe(self) -> dict[str, str]:
        settings = self.task.config.contrastive
        projection = f"projection {settings.projection_hidden} and {settings.projection_width} wide"
        what = f"contrastive learning, two views of each image, temperature {settings.temperature:g}, {projection}"
        return {"task": what, **super().describe()}

    def test(self, model: nn.Module, _: dict[str, Any], /) -> EncoderResult:
        task, loader = self.task, self.test_loader
        return measure(task.evaluator, model, task.views(loader.split), loader, task.config.data)


def measure(
    evaluator: Evaluator, model: nn.Module, views: AugmentingLoader, loader: EvalLoader, data: DataConfig
) -> EncoderResult:
    """The results of a split, the same on every process."""
    loss, (knn, readable) = evaluator.loss(model, views), evaluator.knn_accuracy(model, loader)
    pictures = find_neighbours(evaluator, model, loader, data, readable)
    return EncoderResult(loss, knn, len(readable), loader.num_total, pictures)


open_report = ContrastiveReport
