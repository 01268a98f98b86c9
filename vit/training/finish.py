"""What a finished run leaves: the test set, read once; and a summary of every measured number."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

from vit.evaluation.cost import count_parameters
from vit.runs import find_checkpoint, read_checkpoint, read_metrics, write_json
from vit.sharding import load_whole
from vit.training.setup import Session
from vit.training.state import Progress


def finish(session: Session, progress: Progress) -> dict[str, Any]:
    """Evaluate the best and the last weights on the test set, write everything, and return the summary.

    Every process evaluates its share; the main one writes.
    """
    task = session.task
    results: dict[str, Any] = {}
    steps: dict[str, int] = {}
    for select in ("last", "best"):
        steps[select] = _load_weights(session, find_checkpoint(session.run, select))
        judged = select == "best" and steps["best"] == steps["last"]
        results[select] = results["last"] if judged else task.test(session.model)
    summary = {
        **_measured(session, progress),
        "best.step": steps["best"],
        f"val.{task.goal.metric}": _validated(session, progress, steps["best"]),
        **task.summary(results["best"], results["last"]),
    }
    if session.is_main:
        task.write(session.run, results["best"], summary)
        write_json(session.run / "summary.json", summary)
    session.accelerator.wait_for_everyone()
    if session.config.train.tensorboard:
        session.accelerator.end_training()
    return summary


def _load_weights(session: Session, path: Any) -> int:
    """Put a checkpoint's weights into the model, and return the step that they are of."""
    group = "model" if session.average is None else "ema"
    checkpoint = read_checkpoint(path, [group])
    load_whole(session.bare_model, checkpoint.tensors[group])
    return int(checkpoint.state["progress"]["step"])


def _validated(session: Session, progress: Progress, step: int) -> float:
    """The goal's value for the weights of a step: the best's, or the last's where the best are damaged."""
    best = progress.best
    assert best is not None, "the last epoch is always validated"
    if step == best["step"]:
        return float(best["value"])
    key = f"{'' if session.average is None else 'ema.'}val.{session.task.goal.metric}"
    return next(float(record[key]) for record in read_metrics(session.run) if record["step"] == step and key in record)


def _measured(session: Session, progress: Progress) -> dict[str, Any]:
    """What is said of every run, whatever its task."""
    unit = session.task.unit
    return {
        "model": session.task.model_name,
        "dataset": session.task.dataset,
        "params": count_parameters(session.bare_model),
        "seconds": round(progress.seconds, 2),
        f"{unit}_per_second": round(progress.samples_seen / max(progress.seconds, 1e-9), 1),
        "epochs": session.config.train.epochs,
        "steps": progress.step,
        f"{unit}_seen": progress.samples_seen,
        "weights": "raw" if session.average is None else "ema",
        "seed": session.config.seed,
        "device": str(session.accelerator.device.type),
        "precision": session.precision,
        "processes": session.accelerator.num_processes,
        "data.fingerprint": session.task.fingerprint,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("vit", "torch", "torchvision", "timm", "accelerate")},
        },
    }
