"""What a finished run leaves: the test set, read once; predictions, figures, summary and model card."""

from __future__ import annotations

import platform
import shlex
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from vit.data.images import open_test
from vit.data.loading import EvalLoader
from vit.evaluation.cost import count_parameters, multiply_adds
from vit.evaluation.evaluate import predict
from vit.evaluation.metrics import classification_metrics, confusion_matrix
from vit.evaluation.predictions import Predictions
from vit.figures.confusion_matrix import confusion_matrix as draw_confusion_matrix
from vit.figures.learning_curves import CONVENTIONS, learning_curves
from vit.figures.style import save_figure
from vit.models import build_model
from vit.runs import find_checkpoint, read_checkpoint, read_metrics, write_json
from vit.sharding import load_whole
from vit.training.setup import Session
from vit.training.state import Progress


def finish(session: Session, progress: Progress) -> dict[str, Any]:
    """Evaluate the best and the last weights on the test set, write everything, and return the summary.

    Every process evaluates its share; the main one writes.
    """
    split = open_test(session.config.data)
    place = {"rank": session.accelerator.process_index, "world_size": session.accelerator.num_processes}
    loader = EvalLoader(split, session.preprocessing, session.config.data, **place)
    results: dict[str, Predictions] = {}
    steps: dict[str, int] = {}
    for select in ("last", "best"):
        steps[select] = _load_weights(session, find_checkpoint(session.run, select))
        judged = select == "best" and steps["best"] == steps["last"]
        results[select] = results["last"] if judged else _predict(session, loader)
    chosen = {"best.step": steps["best"], "val.top1": _val_top1(session, progress, steps["best"])}
    summary = _summary(session, progress, results, chosen)
    if session.is_main:
        _write(session, results["best"], summary)
    session.accelerator.wait_for_everyone()
    if session.config.train.tensorboard:
        session.accelerator.end_training()
    return summary


def _load_weights(session: Session, path: Path) -> int:
    """Put a checkpoint's weights into the model, and return the step that they are of."""
    group = "model" if session.average is None else "ema"
    checkpoint = read_checkpoint(path, [group])
    load_whole(session.bare_model, checkpoint.tensors[group])
    return int(checkpoint.state["progress"]["step"])


def _val_top1(session: Session, progress: Progress, step: int) -> float:
    """Validation accuracy of the weights of a step: the best's, or the last's where the best are damaged."""
    best = progress.best
    assert best is not None, "the last epoch is always validated"
    if step == best["step"]:
        return float(best["value"])
    key = "val.top1" if session.average is None else "ema.val.top1"
    return next(float(record[key]) for record in read_metrics(session.run) if record["step"] == step and key in record)


def _predict(session: Session, loader: EvalLoader) -> Predictions:
    device = session.accelerator.device
    return predict(session.model, loader, session.class_names, device=device, gather=session.gather)


def _multiply_adds(session: Session) -> int:
    """Counted on a twin without weights: a pass of a sharded model is every process's."""
    with torch.device("meta"):
        twin = build_model(session.bare_model.config)
    return multiply_adds(twin, session.preprocessing.image_size)


def _summary(
    session: Session, progress: Progress, results: dict[str, Predictions], chosen: dict[str, Any]
) -> dict[str, Any]:
    """`chosen`: `best.step` and `val.top1` of the weights that are judged as the best. Every process must ask."""
    config = session.config
    return {
        "model": session.model_name,
        "dataset": config.data.name,
        "params": count_parameters(session.bare_model),
        "gmacs": _multiply_adds(session) / 1e9,
        "seconds": round(progress.seconds, 2),
        "images_per_second": round(progress.images_seen / max(progress.seconds, 1e-9), 1),
        "epochs": config.train.epochs,
        "steps": progress.step,
        "images_seen": progress.images_seen,
        "train.n_broken": len(session.broken_images()),
        "weights": "raw" if session.average is None else "ema",
        **chosen,
        **{f"test.{name}": value for name, value in classification_metrics(results["best"]).items()},
        "last.test.top1": classification_metrics(results["last"])["top1"],
        "seed": config.seed,
        "device": str(session.accelerator.device.type),
        "precision": session.precision,
        "processes": session.accelerator.num_processes,
        "data.fingerprint": session.data_fingerprint,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("vit", "torch", "torchvision", "timm", "accelerate")},
        },
    }


def _write(session: Session, predictions: Predictions, summary: dict[str, Any]) -> None:
    run = session.run
    (run / "predictions").mkdir(exist_ok=True)
    predictions.save(run / "predictions" / "test.npz")
    draw_run(run, predictions)
    (run / "README.md").write_text(model_card(run, summary, session.class_names, session.config.model.pretrained))
    write_json(run / "summary.json", summary)


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
