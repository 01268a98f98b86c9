"""A run's log lines: in `metrics.jsonl`, in TensorBoard, and in the progress bar."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from vit.runs import append_metrics
from vit.training.session import Session


def progress_bar(session: Session) -> Any:
    return tqdm(
        total=session.total_steps,
        initial=session.progress.step,
        desc=session.task.info.model_name,
        unit="step",
        disable=None if session.is_main else True,
        dynamic_ncols=True,
    )


def log_steps(session: Session, rate: float, bar: Any) -> None:
    """Log means over the steps since the last line, and show them in the bar."""
    window, info = session.progress.close_window(), session.task.info
    loss, accuracy = window["loss"] / window["normalizer"], window["hits"] / window["normalizer"]
    speed = window["samples"] / max(window["seconds"], 1e-9)
    record = {"lr": rate, "train.loss": loss, f"{info.unit}_per_second": speed}
    shown = f"loss {loss:.3f}, {speed:.0f} {info.unit}/s"
    if info.has_accuracy:
        record["train.accuracy"] = accuracy
        shown = f"loss {loss:.3f}, accuracy {accuracy:.1%}, {speed:.0f} {info.unit}/s"
    log_metrics(session, record)
    bar.set_postfix_str(shown)


def log_metrics(session: Session, record: dict[str, float]) -> None:
    progress, unit = session.progress, session.task.info.unit
    record = {"step": progress.step, "epoch": progress.epoch, f"{unit}_seen": progress.samples_seen, **record}
    if session.is_main:
        append_metrics(session.run, record)
    if session.config.train.tensorboard:
        session.accelerator.log(record, step=progress.step)
