"""A masked autoencoder's plan, and its results: losses and neighbours of the test set, pictures, model card."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vit.config import DataConfig
from vit.data.loading import EvalLoader
from vit.evaluation.cost import multiply_adds
from vit.models import VisionTransformer
from vit.models.masked_autoencoder import MaskedAutoencoder, num_seen
from vit.tasks.encoder_report import NEXT, EncoderReport, EncoderResult, headline
from vit.tasks.masked_autoencoder.metrics import Evaluator
from vit.tasks.masked_autoencoder.reconstruction import reconstruct
from vit.tasks.masked_autoencoder.training import MaskedPrediction, decoder_of
from vit.wording import counted

__all__ = ["NEXT", "MaskedAutoencoderReport", "headline", "measure", "open_report"]


class MaskedAutoencoderReport(EncoderReport):
    """The `Report` of a `MaskedPrediction`."""

    picture = "reconstructions"
    title = "a masked autoencoder trained on {dataset}"
    loss = "of the patches that are hidden"
    beside = "decoder"
    counts = "decoder included"
    training_only = "hidden patches, decoder included"

    def __init__(self, task: MaskedPrediction) -> None:
        super().__init__(task)
        self.task = task

    def describe(self) -> dict[str, str]:
        settings, rows = self.task.config.mae, super().describe()
        decoder = f"decoder {settings.decoder_width} wide, {counted(settings.decoder_depth, 'block')}"
        return {"task": f"masked autoencoder, {settings.mask_ratio:.0%} of the patches hidden, {decoder}", **rows}

    def _notes_of_memory(self) -> list[str]:
        """None: memory is not computed for an encoder that sees a part of the patches."""
        return []

    def plan(self, precision: str) -> dict[str, str]:  # noqa: ARG002
        return self._arithmetic()

    def _step_multiply_adds(self, image_size: tuple[int, int]) -> int:
        """Multiply-adds of the encoder on the visible patches plus the decoder on all of them."""
        with torch.device("meta"):
            encoder = VisionTransformer(self.task.model.config)
            step = _Step(MaskedAutoencoder(encoder, decoder_of(self.task.config.mae)), self.task.config.mae.mask_ratio)
        return multiply_adds(step, image_size)

    def test(self, model: nn.Module, _: dict[str, Any], /) -> EncoderResult:
        return measure(self.task.evaluator, model, self.test_loader, self.task.config.data)


class _Step(nn.Module):
    """The forward pass of a training step."""

    def __init__(self, autoencoder: MaskedAutoencoder, mask_ratio: float) -> None:
        super().__init__()
        self.autoencoder, self.mask_ratio = autoencoder, mask_ratio

    def forward(self, images: Tensor) -> Tensor:
        rows, columns = self.autoencoder.encoder.embedding.grid_size(images)
        kept = torch.arange(num_seen(rows * columns, self.mask_ratio), device=images.device)
        predicted: Tensor = self.autoencoder(images, kept.expand(len(images), -1))
        return predicted


def measure(evaluator: Evaluator, model: nn.Module, loader: EvalLoader, data: DataConfig) -> EncoderResult:
    """The results of a split, the same on every process."""
    losses = evaluator.losses(model, loader)
    knn, readable = evaluator.knn_accuracy(model, loader)
    pictures = reconstruct(evaluator, model, loader, data, readable)
    return EncoderResult(float(losses.mean()), knn, len(losses), loader.num_total, pictures)


open_report = MaskedAutoencoderReport
