"""The report of a task that trains an encoder without labels: losses, neighbours, a picture, model card."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from vit.data.images import ImageSource, open_test
from vit.data.loading import EvalLoader
from vit.data.splits import Split, balanced_subset
from vit.tasks.image_report import ImageReport, notes_of_broken
from vit.tasks.learning_curves import draw_learning_curves
from vit.tasks.task import Rates
from vit.wording import counted, in_giga, markdown_table

NEXT = (
    "vit eval {run} --transfer",
    "vit train --config CONFIG --model.pretrained {run} --model.new_head true",
    "vit analyze {run}",
)
_NUM_PICTURED = 8


def pictured(source: ImageSource, readable: Tensor) -> Split:
    """A few of the images that can be read (n,), always the same ones, of different classes where there are as many."""
    few = balanced_subset(Split(source, readable), 4 * _NUM_PICTURED, stream="pictures")
    seen = Counter[int]()
    rounds = torch.empty(len(few), dtype=torch.int64)  # how many of its class come before an image
    for place, label in enumerate(few.labels.tolist()):
        rounds[place] = seen[label]
        seen[label] += 1
    chosen = rounds.argsort(stable=True)[:_NUM_PICTURED].sort().values
    return Split(source, few.indices[chosen])


class Picture(Protocol):
    """A figure with its numbers beside it."""

    def save(self, path: Path) -> None: ...


@dataclass(frozen=True)
class EncoderResult:
    """Metrics on the test set, and a picture of some of its images."""

    loss: float
    knn: float
    num_images: int
    """Those that could be read."""
    num_total: int
    picture: Picture


class EncoderReport(ImageReport, ABC):
    """The part of a `Report` that tasks share whose encoder is trained without labels."""

    picture: ClassVar[str]
    """The picture's name, in the plural."""
    title: ClassVar[str]
    """The rest of the model card's title after the model's name; `{dataset}`: the data."""
    beside: ClassVar[str]
    """The part of the model beside its encoder."""
    counts: ClassVar[str]
    """Views and parts that are in `train.gmacs`."""

    @cached_property
    def test_loader(self) -> EvalLoader:
        """Opened when training is over."""
        return self._task.eval_loader(open_test(self._task.config.data))

    @property
    @abstractmethod
    def loss(self) -> str:
        """The loss, for the card's table."""

    @abstractmethod
    def test(self, model: nn.Module, _: dict[str, Any], /) -> EncoderResult:
        """Results on the test set."""

    def summary(self, best: EncoderResult, last: EncoderResult) -> dict[str, Any]:
        return {
            **self.costs(),
            "test.loss": best.loss,
            "test.knn": best.knn,
            "test.n_seen": best.num_images,
            "test.n_total": best.num_total,
            "test.n_broken": best.num_total - best.num_images,
            "last.test.loss": last.loss,
            "last.test.knn": last.knn,
        }

    def write(self, run: Path, best: EncoderResult, summary: dict[str, Any], rates: Rates | None) -> None:
        draw_learning_curves(run, rates)
        best.picture.save(run / "figures" / f"{self.picture}.png")
        (run / "README.md").write_text(self.model_card(run, summary), encoding="utf-8")

    def model_card(self, run: Path, summary: dict[str, Any]) -> str:
        """The model, its training and its measured numbers as Markdown."""
        rows = [
            (f"test loss, {self.loss}", f"{summary['test.loss']:.4f}"),
            ("test k-NN accuracy of the frozen features", f"{summary['test.knn']:.2%}"),
            ("validation loss (chose the weights)", f"{summary['val.loss']:.4f} at step {summary['best.step']:.0f}"),
            ("test k-NN accuracy of the last weights", f"{summary['last.test.knn']:.2%}"),
            (f"parameters, {self.beside} included", f"{summary['params']:,}"),
            ("multiply-adds of the encoder on a whole image", in_giga(1e9 * summary["gmacs"])),
            (
                f"multiply-adds an image in training, mean over the epochs, {self.counts}",
                in_giga(1e9 * summary["train.gmacs"]),
            ),
            ("training", f"{counted(summary['epochs'], 'epoch')}, {summary['seconds']:.0f} s"),
            ("precision, device, seed", f"{summary['precision']}, {summary['device']}, {summary['seed']}"),
        ]
        place = shlex.quote(str(run))
        return (
            f"# {summary['model']}, {self.title.format(dataset=summary['dataset'])}\n\n"
            f"{markdown_table(('measured', ''), rows)}\n\n"
            "No label was used in training; the k-NN accuracy uses those of training images. Every setting and its "
            "origin: `config.yaml`. Evaluate the frozen features, or train a classifier from the encoder's weights, "
            "with\n\n"
            f"    vit eval {place} --transfer\n"
            f"    vit train --config CONFIG --model.pretrained {place} --model.new_head true\n\n"
            f"![{self.picture}](figures/{self.picture}.png)\n\n![learning curves](figures/learning_curves.png)\n"
        )


def headline(summary: dict[str, Any]) -> str:
    """The result in a few words."""
    images = counted(summary["test.n_seen"], "image")
    left_out = "".join(f"; {note}" for note in notes_of_broken(summary))
    accuracy = f"k-NN accuracy of the features {summary['test.knn']:.2%} of {images}"
    return f"test loss {summary['test.loss']:.4f}, {accuracy}{left_out}"
