"""A classification run's plan, and its results: test set, curves, confusion matrix, model card."""

from __future__ import annotations

import html
import shlex
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from vit.data.duplicates import Duplicate, near_duplicates
from vit.data.file_source import FileSource
from vit.data.images import Split, fingerprint, open_test
from vit.data.loading import EvalLoader
from vit.data.run_images import image_list_path, read_images, with_test, write_images
from vit.evaluation.metrics import classification_metrics, confusion_matrix, per_class_accuracy
from vit.evaluation.predictions import Predictions, write_table
from vit.evaluation.seen_images import seen_by_run, warnings_of
from vit.evaluation.statistics import accuracy_in_words
from vit.figures.confusion_matrix import plot_confusion_matrix
from vit.figures.style import save_figure
from vit.tasks.classification.config import ClassificationRun
from vit.tasks.classification.mistakes import draw_mistakes
from vit.tasks.classification.training import Classification
from vit.tasks.image_report import MOST_COMPARED, ImageReport, notes_of_broken
from vit.tasks.learning_curves import draw_learning_curves
from vit.tasks.task import Rates
from vit.wording import counted, in_giga, markdown_table

DUPLICATES = Path("predictions") / "near_duplicates.tsv"


class ClassificationReport(ImageReport):
    """The `Report` of a `Classification`."""

    def __init__(self, task: Classification) -> None:
        super().__init__(task)
        self.task = task

    @cached_property
    def test_loader(self) -> EvalLoader:
        """Opened when training is over."""
        return self.task.eval_loader(open_test(self.task.config.data))

    def test(self, model: nn.Module, _: dict[str, Any], /) -> Predictions:
        predictions = self.task.predict(model, self.test_loader)
        return replace(predictions, fingerprint=fingerprint(self.test_loader.split))

    def summary(self, best: Predictions, last: Predictions) -> dict[str, Any]:
        return {
            **self.costs(),
            "data.notes": "; ".join([*self.task.data_notes, *self.seen_before]),
            **{f"test.{name}": value for name, value in classification_metrics(best).items()},
            "test.balanced_accuracy": float(np.nanmean(per_class_accuracy(best))),
            "last.test.top1": classification_metrics(last)["top1"],
            "test.n_near_duplicates": None if self.duplicates is None else len(self.duplicates),
        }

    def notes(self) -> list[str]:
        """Also of test images that the run behind the pretrained weights has seen."""
        test = self.early_test
        return super().notes() if test is None else [*super().notes(), *self._notes_of_seen(test)]

    def num_test_images(self) -> int | None:
        test = self.early_test
        return None if test is None else len(test)

    @cached_property
    def seen_before(self) -> list[str]:
        """A sentence about test images that the run behind the pretrained weights has seen, if any."""
        return self._notes_of_seen(self.test_loader.split) if self.task.accelerator.is_main_process else []

    def _notes_of_seen(self, test: Split) -> list[str]:
        pretrained = self.task.config.model.pretrained
        return [] if pretrained is None else warnings_of(seen_by_run(pretrained, self.task.config.data, test))

    @cached_property
    def duplicates(self) -> list[Duplicate] | None:
        """Test images that are nearly training images, of a user's own files; None where they were not looked for."""
        train, test = self.task.train_split, self.test_loader.split
        own = isinstance(test.source, FileSource) and len(train) + len(test) <= MOST_COMPARED
        return near_duplicates(train, test) if own and self.task.accelerator.is_main_process else None

    def write(self, run: Path, best: Predictions, summary: dict[str, Any], rates: Rates | None) -> None:
        best.save(run / "predictions" / "test.npz")
        write_table(run / "predictions" / "test.csv", best, self.test_loader.split.source)
        draw_run(run, best, rates)
        draw_mistakes(run / "figures" / "mistakes.png", best, self.test_loader.split.source)
        if (listed := image_list_path(run)).is_file():
            write_images(listed, with_test(read_images(listed), self.test_loader.split))
        if self.duplicates:
            rows = [f"{each.cosine:.4f}\t{each.test}\t{each.train}\n" for each in self.duplicates]
            (run / DUPLICATES).write_text(
                "".join(["cosine\ttest\ttrain\n", *rows]), encoding="utf-8", errors="surrogateescape"
            )
        card = model_card(run, summary, best.class_names, self.task.config)
        (run / "README.md").write_text(card, encoding="utf-8")


open_report = ClassificationReport
NEXT = ("vit predict {run} IMAGE…", "vit analyze {run}")


def headline(summary: dict[str, Any]) -> str:
    """The result in a few words."""
    accuracy = accuracy_in_words(summary["test.top1"], round(summary["test.n_seen"]))
    warning = "".join(f"; {note}" for note in [*_duplicate_notes(summary), *notes_of_broken(summary)])
    return f"{accuracy}{warning}, {summary['images_per_second']:.0f} images/s"


def _duplicate_notes(summary: dict[str, Any]) -> list[str]:
    count = summary["test.n_near_duplicates"]
    verb = "is" if count == 1 else "are"
    return [f"{count:,} of the test images {verb} nearly the same as a training image ({DUPLICATES})"] if count else []


def draw_run(run: Path, predictions: Predictions, rates: Rates | None) -> None:
    """Draw the learning curves and the confusion matrix of a run, with their numbers."""
    draw_learning_curves(run, rates)
    counts = confusion_matrix(predictions)
    names = predictions.class_names
    numbers = {
        "counts": counts.tolist(),
        "class_names": names,
        "recall": per_class_accuracy(predictions),
        "conventions": "rows: true class; columns: predicted class",
    }
    save_figure(plot_confusion_matrix(counts, names), run / "figures" / "confusion_matrix.png", numbers)


def model_card(run: Path, summary: dict[str, Any], class_names: list[str], config: ClassificationRun) -> str:
    """The model, its training and its measured numbers as Markdown."""
    escaped = [html.escape(" ".join(name.split())) for name in class_names[:20]]  # names are folders', so anything
    shown = ", ".join(escaped) + (f", … ({len(class_names)} in all)" if len(class_names) > 20 else "")
    rows = [
        ("test top-1", f"{summary['test.top1']:.2%} of {counted(summary['test.n_seen'], 'image')}"),
        ("test balanced accuracy (mean recall of the classes)", f"{summary['test.balanced_accuracy']:.2%}"),
        *([("test top-5", f"{summary['test.top5']:.2%}")] if len(class_names) > 5 else []),
        ("test negative log-likelihood", f"{summary['test.nll']:.4f}"),
        ("test expected calibration error (equal mass)", f"{summary['test.ece_equal_mass']:.4f}"),
        (
            "validation top-1 (chose the weights)",
            f"{summary['val.top1']:.2%} at step {summary['best.step']:.0f}",
        ),
        ("test top-1 of the last weights", f"{summary['last.test.top1']:.2%}"),
        ("parameters", f"{summary['params']:,}"),
        ("multiply-adds an image", in_giga(1e9 * summary["gmacs"])),
        ("multiply-adds an image in training, mean over the epochs", in_giga(1e9 * summary["train.gmacs"])),
        (
            "training",
            f"{counted(summary['epochs'], 'epoch')}, {summary['seconds']:.0f} s, "
            f"{summary['images_per_second']:.0f} images/s",
        ),
        ("precision, device, seed", f"{summary['precision']}, {summary['device']}, {summary['seed']}"),
    ]
    broken = notes_of_broken(summary)
    notes = "".join(f"- {note}\n" for note in [summary["data.notes"], *_duplicate_notes(summary), *broken] if note)
    start = f"Started from `{config.model.pretrained}`.\n\n" if config.model.pretrained else ""
    data = f"`{config.data.root}`" if config.data.name == "imagefolder" else summary["dataset"]
    return (
        f"# {summary['model']} on {data}\n\n{start}"
        f"{markdown_table(('measured', ''), rows)}\n\n"
        f"Classes: {shown}.\n\n{notes and notes + chr(10)}"
        "The test set was evaluated after training and chose nothing; the weights were chosen on validation images, "
        "which were not trained on. Every setting and its origin: `config.yaml`. Evaluate again with\n\n"
        f"    vit eval {shlex.quote(str(run))}\n\n"
        "![learning curves](figures/learning_curves.png)\n\n![confusion matrix](figures/confusion_matrix.png)\n"
    )
