"""A multi-label run's plan, and its results: the test set at the chosen thresholds, a figure, model card."""

from __future__ import annotations

import shlex
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from vit.data.splits import Split
from vit.figures.average_precision import plot_average_precision
from vit.figures.style import save_figure
from vit.tasks.image_report import ImageReport, notes_of_broken
from vit.tasks.learning_curves import draw_learning_curves
from vit.tasks.multilabel.metrics import (
    CONVENTIONS,
    LabelPredictions,
    decision_metrics,
    metrics_by_class,
    ranking_metrics,
)
from vit.tasks.multilabel.table import open_test
from vit.tasks.multilabel.training import Multilabel
from vit.tasks.task import Rates
from vit.wording import counted, in_giga, markdown_table


class MultilabelReport(ImageReport):
    """The `Report` of a `Multilabel`."""

    def __init__(self, task: Multilabel) -> None:
        super().__init__(task)
        self.task = task

    def test(self, model: nn.Module, state: dict[str, Any], /) -> LabelPredictions:
        """At the thresholds that were chosen for these weights when they were validated."""
        loader = self.task.eval_loader(open_test(self.task.config.data, self.task.class_names))
        return self.task.predict(model, loader, np.array(state["thresholds"]))

    @cached_property
    def early_test(self) -> Split:
        """The test table, which was checked when the task was opened."""
        return open_test(self.task.config.data, self.task.class_names)

    def summary(self, best: LabelPredictions, last: LabelPredictions) -> dict[str, Any]:
        return {
            **self.costs(),
            **{f"test.{name}": value for name, value in {**ranking_metrics(best), **decision_metrics(best)}.items()},
            "last.test.map": ranking_metrics(last)["map"],
        }

    def write(self, run: Path, best: LabelPredictions, summary: dict[str, Any], rates: Rates | None) -> None:
        best.save(run / "predictions" / "test.npz")
        draw_learning_curves(run, rates)
        draw_classes(best, run / "figures" / "average_precision.png")
        (run / "README.md").write_text(model_card(run, summary, best), encoding="utf-8")


open_report = MultilabelReport
NEXT = ("vit predict {run} IMAGE…", "vit analyze {run}")


def headline(summary: dict[str, Any]) -> str:
    """The result in a few words."""
    left_out = "".join(f"; {note}" for note in notes_of_broken(summary))
    return f"test mAP {summary['test.map']:.2%} of {counted(summary['test.n_seen'], 'image')}{left_out}"


def draw_classes(predictions: LabelPredictions, path: Path) -> None:
    """Average precision and F1 of every class, with their numbers."""
    classes = metrics_by_class(predictions)
    save_figure(plot_average_precision(classes), path, {"classes": classes, "conventions": CONVENTIONS})


def model_card(run: Path, summary: dict[str, Any], predictions: LabelPredictions) -> str:
    """The model, its training and its measured numbers as Markdown."""
    rows = [
        ("test mean average precision", f"{summary['test.map']:.2%} of {counted(summary['test.n_seen'], 'image')}"),
        ("test F1, macro", f"{summary['test.f1_macro']:.4f}"),
        ("test F1, micro", f"{summary['test.f1_micro']:.4f}"),
        ("validation mAP (chose the weights)", f"{summary['val.map']:.2%} at step {summary['best.step']:.0f}"),
        ("test mAP of the last weights", f"{summary['last.test.map']:.2%}"),
        ("parameters", f"{summary['params']:,}"),
        ("multiply-adds an image", in_giga(1e9 * summary["gmacs"])),
        ("multiply-adds an image in training, mean over the epochs", in_giga(1e9 * summary["train.gmacs"])),
        ("training", f"{counted(summary['epochs'], 'epoch')}, {summary['seconds']:.0f} s"),
        ("precision, device, seed", f"{summary['precision']}, {summary['device']}, {summary['seed']}"),
    ]
    header = ("class", "average precision", "F1", "threshold", "test images")
    classes = [
        (
            name,
            "–" if one["average_precision"] is None else format(one["average_precision"], ".2%"),
            f"{one['f1']:.4f}",
            f"{one['threshold']:.3f}",
            str(one["images"]),
        )
        for name, one in metrics_by_class(predictions).items()
    ]
    broken = "".join(f"- {note}\n\n" for note in notes_of_broken(summary))
    return (
        f"# {summary['model']}, any number of labels an image\n\n{markdown_table(('measured', ''), rows)}\n\n"
        f"{markdown_table(header, classes)}\n\n{broken}"
        "The test set was evaluated after training and chose nothing; weights and thresholds were chosen on a "
        "validation split cut from the training table. Every setting and its origin: `config.yaml`. Evaluate again "
        "with\n\n"
        f"    vit eval {shlex.quote(str(run))}\n\n"
        "![learning curves](figures/learning_curves.png)\n\n![average precision](figures/average_precision.png)\n"
    )
