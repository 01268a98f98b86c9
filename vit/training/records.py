"""A run's log lines, in `metrics.jsonl` and in the trackers."""

from __future__ import annotations

from vit.runs import append_metrics
from vit.training.session import Session
from vit.training.trackers import log_to_trackers


def log_steps(session: Session, rate: float) -> str:
    """Log means over the steps since the last line, and return them as a text."""
    window, info = session.progress.close_window(), session.task.info
    loss, accuracy = window["loss"] / window["normalizer"], window["hits"] / window["normalizer"]
    speed = window["samples"] / max(window["seconds"], 1e-9)
    record = {"lr": rate, "train.loss": loss, f"{info.unit}_per_second": speed}
    shown = f"loss {loss:.3f}, {speed:,.0f} {info.unit}/s"
    if info.has_accuracy:
        record["train.accuracy"] = accuracy
        shown = f"loss {loss:.3f}, accuracy {accuracy:.1%}, {speed:,.0f} {info.unit}/s"
    log_metrics(session, record)
    return shown


def log_metrics(session: Session, record: dict[str, float]) -> None:
    progress, unit = session.progress, session.task.info.unit
    place = {"step": progress.step, "epoch": progress.epoch, f"{unit}_seen": progress.samples_seen}
    record = place | {"seconds": round(progress.seconds, 3)} | record
    if session.is_main:
        append_metrics(session.run, record)
    log_to_trackers(session.accelerator, record, progress.step)
