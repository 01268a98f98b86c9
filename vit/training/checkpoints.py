"""Saving a session as a checkpoint, and continuing from the newest one. Its files: `vit/runs/`."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from vit.config import RunConfig, check
from vit.config.run_state import check_state
from vit.engine import gather_object
from vit.runs import (
    Checkpoint,
    damaged_checkpoints,
    last_checkpoint,
    read_checkpoint,
    read_metrics,
    read_summary,
    write_checkpoint,
)
from vit.settings import read_run_config, run_config_from
from vit.training.allowed_changes import check_epochs, check_same, what_other_epochs_change
from vit.training.progress import RunCounters
from vit.training.session import Session
from vit.training.state import gather_tensors, scatter_tensors

log = logging.getLogger(__name__)

_NEEDED = ("config", "task", "progress", "best", "data_fingerprint", "precision", "scaler", "processes")
"""Keys of a checkpoint's state without which no run can be continued."""


def save_session(session: Session) -> Path | None:
    """Write a checkpoint; every process calls it, the main one writes."""
    tensors = gather_tensors(session)
    scaler = session.accelerator.scaler
    state = {
        "progress": asdict(session.progress),
        "best": session.progress.best,
        "model_name": session.task.info.model_name,
        "task": session.task.state(),
        "config": asdict(session.config),
        "data_fingerprint": session.task.info.fingerprint,
        "images": session.names_of_images,
        "precision": session.precision,
        "scaler": None if scaler is None else scaler.state_dict(),
        "processes": session.accelerator.num_processes,
    }
    written = None
    if session.is_main:
        written = write_checkpoint(session.run, session.progress.step, Checkpoint(state, tensors))
    session.accelerator.wait_for_everyone()
    return written


class Continued(NamedTuple):
    """Where a run goes on from."""

    checkpoint: Path
    note: str
    """For the user, about another number of epochs than before; else empty."""


def load_session(session: Session) -> Continued | None:
    """Continue from the newest checkpoint that verifies, and return it; from the beginning where there is none yet.

    ValueError when the settings or the data differ from those the checkpoint was made with, and, naming them, when
    there are checkpoints and all are damaged.
    """
    path = last_checkpoint(session.run)
    _check_agreed(session, path)
    if path is None:
        if damages := damaged_checkpoints(session.run):
            raise ValueError(
                f"--resume: every checkpoint of {str(session.run)!r} is damaged, and none was deleted "
                f"({'; '.join(damages)}); restore one, or start again with another --output_dir"
            )
        _check_nothing_lost(session)
        log.warning("%s holds no checkpoint yet: starting from the beginning", session.run)
        return None
    checkpoint = read_checkpoint(path)
    check_state(checkpoint.state, path, _NEEDED)
    before: RunConfig = run_config_from(checkpoint.state["config"])
    check_same(session, before, checkpoint.state, path)
    try:
        scatter_tensors(session, checkpoint.tensors)
    except RuntimeError as error:  # of the same settings, an older version's model had other shapes
        reason = " ".join(str(error).split())[-200:]
        rule = "the tensors do not fit the model that this version makes of the run's settings; train it anew"
        raise ValueError(f"{path}: {rule} (…{reason})") from error
    if session.accelerator.scaler is not None:
        session.accelerator.scaler.load_state_dict(checkpoint.state["scaler"])
    session.progress = RunCounters(**checkpoint.state["progress"])
    _check_counters(session, path)
    check_epochs(session, before.train.epochs)
    try:
        session.task.load_state(checkpoint.state["task"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: state.json was altered: {error}") from error
    session.accelerator.wait_for_everyone()
    same = session.config.train.epochs == before.train.epochs
    return Continued(path, "" if same else what_other_epochs_change(session, before.train.epochs))


def _check_agreed(session: Session, path: Path | None) -> None:
    """ValueError in all processes where they would continue from different checkpoints: DDP would not notice."""
    found = gather_object(["none" if path is None else path.name])
    rule = f"the processes see other checkpoints in it ({', '.join(sorted(set(found)))}); it must be one folder for all"
    check(len(set(found)) == 1, "--resume", str(session.run), rule)


def _check_nothing_lost(session: Session) -> None:
    """ValueError for a run that has no checkpoint any more, where there must have been one."""
    steps = max((record["step"] for record in read_metrics(session.run) if "step" in record), default=0)
    if steps > _steps_to_first_save(session) or read_summary(session.run):
        raise ValueError(
            f"--resume: {str(session.run)!r} has no checkpoint any more, although it was trained for {steps} steps; "
            "restore one, or start again with another --output_dir"
        )


def _steps_to_first_save(session: Session) -> int:
    """By the settings that the run was started with, if its folder still tells them."""
    settings, config = session.run / "config.yaml", session.config
    with suppress(OSError, ValueError):
        config = read_run_config(settings)[0]
    epochs = min(config.train.epochs, config.train.save_every_epochs, config.train.evaluate_every_epochs)
    whole = epochs * session.task.train_loader.steps_per_epoch
    return whole if config.train.save_every_steps is None else min(whole, config.train.save_every_steps)


def _check_counters(session: Session, path: Path) -> None:
    progress, an_epoch = session.progress, session.task.train_loader.steps_per_epoch
    expected = progress.epoch * an_epoch + progress.step_in_epoch
    if progress.step != expected or progress.step_in_epoch > an_epoch:
        raise ValueError(
            f"{path}: state.json was altered: progress.step is {progress.step}, and epoch {progress.epoch} with "
            f"{progress.step_in_epoch} more steps, of {an_epoch} an epoch, makes {expected}; "
            "or an earlier version divided the epochs otherwise"
        )
