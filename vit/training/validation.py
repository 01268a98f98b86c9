"""Validation during training, which chooses the best checkpoint."""

from __future__ import annotations

from accelerate.utils import broadcast

from vit.tasks.task import NonFinite
from vit.training.records import log_metrics
from vit.training.session import Session


def validate(session: Session) -> dict[str, float]:
    """Log and return validation metrics of the raw weights (`val.…`) and, where there is one, of the average
    (`ema.val.…`), and note whether they are the best so far.
    """
    progress, task, average = session.progress, session.task, session.average
    if session.accelerator.num_processes > 1:
        _share_statistics(session)
    try:
        metrics = {f"val.{name}": value for name, value in task.validate(session.model).items()}
        if average is not None:
            with average.applied_to(session.unwrapped_model):
                metrics |= {f"ema.val.{name}": value for name, value in task.validate(session.model).items()}
    except NonFinite as error:
        raise NonFinite(
            f"{error} after step {progress.step} (epoch {progress.epoch}); the last checkpoint stands. {session.remedy}"
        ) from None
    value = metrics[session.goal]
    # of equals the last: it has trained longer, at a lower rate, and few validation images make many equals
    if progress.best is None or task.info.is_as_good(value, progress.best["value"]):
        progress.best = {"step": progress.step, "value": value}
    log_metrics(session, metrics)
    return metrics


def _share_statistics(session: Session) -> None:
    """BatchNorm's statistics differ between processes; those of the main one are saved, so they are evaluated too."""
    buffers = dict(session.unwrapped_model.named_buffers())
    averaged = {} if session.average is None else session.average.tensors
    for tensor in (*buffers.values(), *(averaged[name] for name in buffers if name in averaged)):
        broadcast(tensor)
