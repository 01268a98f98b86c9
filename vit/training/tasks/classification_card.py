"""What a finished classification run shows of itself: curves, confusion matrix, model card. It measures nothing."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from vit.evaluation.metrics import confusion_matrix
from vit.evaluation.predictions import Predictions
from vit.figures.confusion_matrix import confusion_matrix as draw_confusion_matrix
from vit.figures.learning_curves import CONVENTIONS, learning_curves
from vit.figures.style import save_figure
from vit.runs import read_metrics


def draw_run(run: Path, predictions: Predictions) -> None:
    """The learning curves and the confusion matrix of a run, with their numbers."""
    figures = run / "figures"
    figures.mkdir(exist_ok=True)
    history = read_metrics(run)
    numbers = {"history": history, "conventions": CONVENTIONS}
    save_figure(learning_curves(history), figures / "learning_curves.png", numbers)
    counts = confusion_matrix(predictions)
    names = predictions.class_names
    numbers = {
        "counts": counts.tolist(),
        "class_names": names,
        "conventions": "rows: true class; columns: predicted class",
    }
    save_figure(draw_confusion_matrix(counts, names), figures / "confusion_matrix.png", numbers)


def model_card(run: Path, summary: dict[str, Any], class_names: list[str], pretrained: str | None) -> str:
    """Markdown: what the model is, what it was trained on, and what was measured."""
    shown = ", ".join(class_names[:20]) + (f", … ({len(class_names)} in all)" if len(class_names) > 20 else "")
    rows = [
        ("test top-1", f"{summary['test.top1']:.2%} of {summary['test.n_seen']:.0f} images"),
        ("test top-5", f"{summary['test.top5']:.2%}"),
        ("test negative log-likelihood", f"{summary['test.nll']:.4f}"),
        ("test expected calibration error", f"{summary['test.ece']:.4f}"),
        (
            "validation top-1 (chose the weights)",
            f"{summary['val.top1']:.2%} at step {summary['best.step']:.0f}",
        ),
        ("test top-1 of the last weights", f"{summary['last.test.top1']:.2%}"),
        ("parameters", f"{summary['params']:,}"),
        ("multiply-adds an image", f"{summary['gmacs']:.4f} G"),
        (
            "training",
            f"{summary['epochs']} epochs, {summary['seconds']:.0f} s, {summary['images_per_second']:.0f} images/s",
        ),
        ("precision, device, seed", f"{summary['precision']}, {summary['device']}, {summary['seed']}"),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    start = f"Started from `{pretrained}`.\n\n" if pretrained else ""
    return (
        f"# {summary['model']} on {summary['dataset']}\n\n{start}"
        f"| measured | |\n|---|---|\n{table}\n\n"
        f"Classes: {shown}.\n\n"
        "The test set was read once, after training; the weights were chosen on a validation split cut from the "
        "training set. Every setting and its origin: `config.yaml`. Evaluate again with\n\n"
        f"    python eval.py --checkpoint {shlex.quote(str(run))}\n\n"
        "![learning curves](figures/learning_curves.png)\n\n![confusion matrix](figures/confusion_matrix.png)\n"
    )
