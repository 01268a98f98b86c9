"""A masked autoencoder's plan, and its results: losses and neighbours of the test set, pictures, model card."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.config import DataConfig
from vit.data.images import open_test
from vit.data.loading import EvalLoader
from vit.evaluation.cost import multiply_adds
from vit.figures.learning_curves import CONVENTIONS, plot_learning_curves
from vit.figures.style import save_figure
from vit.models import VisionTransformer
from vit.models.masked_autoencoder import MaskedAutoencoder, num_seen
from vit.runs import read_metrics
from vit.tasks.images import ImageReport
from vit.tasks.masked_autoencoder.metrics import Meter
from vit.tasks.masked_autoencoder.reconstruction import Reconstructions, reconstruct
from vit.tasks.masked_autoencoder.training import MaskedPrediction, decoder_of
from vit.tasks.task import Rates
from vit.wording import counted, in_giga


@dataclass(frozen=True)
class TestResult:
    """Metrics on the test set, and some of its images reconstructed."""

    loss: float
    knn: float
    num_images: int
    pictures: Reconstructions


class MaskedAutoencoderReport(ImageReport):
    """The `Report` of a `MaskedPrediction`."""

    def __init__(self, task: MaskedPrediction) -> None:
        super().__init__(task)
        self.task = task

    def describe(self) -> dict[str, str]:
        settings, rows = self.task.config.mae, super().describe()
        decoder = f"decoder {settings.decoder_width} wide, {counted(settings.decoder_depth, 'block')}"
        return {"task": f"masked autoencoder, {settings.mask_ratio:.0%} of the patches hidden, {decoder}", **rows}

    def notes(self) -> list[str]:
        """Without memory, which is not computed for an encoder that sees a part of the patches."""
        return list(self.task.data_notes)

    def plan(self, precision: str) -> dict[str, str]:  # noqa: ARG002
        task, config = self._task, self._task.config
        sizes = [task.train_loader.augment.image_size(epoch) for epoch in range(config.train.epochs)]
        costs = {size: self._step_multiply_adds(size) for size in set(sizes)}
        operations = (
            6 * sum(costs[size] for size in sizes) * task.train_loader.samples_per_epoch
        )  # backward: twice forward
        arithmetic = f"{operations / 1e15:.4g} PFLOP (forward and backward, 2 operations a multiply-add)"
        return {"training arithmetic": arithmetic}

    def _step_multiply_adds(self, image_size: tuple[int, int]) -> int:
        """Multiply-adds of the encoder on the visible patches plus the decoder on all of them."""
        with torch.device("meta"):
            encoder = VisionTransformer(self.task.model.config)
            step = _Step(MaskedAutoencoder(encoder, decoder_of(self.task.config.mae)), self.task.config.mae.mask_ratio)
        return multiply_adds(step, image_size)

    @cached_property
    def test_loader(self) -> EvalLoader:
        """Opened when training is over."""
        return self.task.eval_loader(open_test(self.task.config.data))

    def test(self, model: nn.Module, _: dict[str, Any], /) -> TestResult:
        return measure(self.task.meter, model, self.test_loader, self.task.config.data)

    def summary(self, best: TestResult, last: TestResult) -> dict[str, Any]:
        return {
            **self.costs(),
            "test.loss": best.loss,
            "test.knn": best.knn,
            "test.n_seen": best.num_images,
            "last.test.loss": last.loss,
            "last.test.knn": last.knn,
        }

    def write(self, run: Path, best: TestResult, summary: dict[str, Any], rates: Rates | None) -> None:
        figures = run / "figures"
        figures.mkdir(exist_ok=True)
        best.pictures.save(figures / "reconstructions.png")
        history = read_metrics(run)
        numbers = {"history": history, "rates": rates, "conventions": CONVENTIONS}
        save_figure(plot_learning_curves(history, rates), figures / "learning_curves.png", numbers)
        (run / "README.md").write_text(model_card(run, summary))


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


def measure(meter: Meter, model: nn.Module, loader: EvalLoader, data: DataConfig) -> TestResult:
    """The results of a split, the same on every process."""
    losses = meter.losses(model, loader)
    pictures = reconstruct(meter, model, loader, data)
    return TestResult(float(losses.mean()), meter.knn_accuracy(model, loader), len(losses), pictures)


open_report = MaskedAutoencoderReport
NEXT = ("vit eval {run} --transfer", "vit train --config CONFIG --model.pretrained {run}", "vit analyze {run}")


def headline(summary: dict[str, Any]) -> str:
    """The result in a few words."""
    images = counted(summary["test.n_seen"], "image")
    return f"test loss {summary['test.loss']:.4f}, k-NN accuracy of the features {summary['test.knn']:.2%} of {images}"


def model_card(run: Path, summary: dict[str, Any]) -> str:
    """The model, its training and its measured numbers as Markdown."""
    rows = [
        ("test loss, of the patches that are hidden", f"{summary['test.loss']:.4f}"),
        ("test k-NN accuracy of the frozen features", f"{summary['test.knn']:.2%}"),
        ("validation loss (chose the weights)", f"{summary['val.loss']:.4f} at step {summary['best.step']:.0f}"),
        ("test k-NN accuracy of the last weights", f"{summary['last.test.knn']:.2%}"),
        ("parameters, decoder included", f"{summary['params']:,}"),
        ("multiply-adds of the encoder on a whole image", in_giga(1e9 * summary["gmacs"])),
        ("training", f"{counted(summary['epochs'], 'epoch')}, {summary['seconds']:.0f} s"),
        ("precision, device, seed", f"{summary['precision']}, {summary['device']}, {summary['seed']}"),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    place = shlex.quote(str(run))
    return (
        f"# {summary['model']}, a masked autoencoder trained on {summary['dataset']}\n\n"
        f"| measured | |\n|---|---|\n{table}\n\n"
        "No label was used in training; the k-NN accuracy uses those of training images. Every setting and its "
        "origin: `config.yaml`. Judge the frozen features, or train a classifier from the encoder's weights, with\n\n"
        f"    vit eval {place} --transfer\n    vit train --config CONFIG --model.pretrained {place}\n\n"
        "![reconstructions](figures/reconstructions.png)\n\n![learning curves](figures/learning_curves.png)\n"
    )
