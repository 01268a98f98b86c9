"""How many epochs of a recipe fit into a time on this machine, measured with its own steps."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

from vit.config import check
from vit.settings import ResolvedRun, resolve_run
from vit.tasks.classification.training import Classification
from vit.training.loop import steps
from vit.training.session import Session, open_session

_SHARE = re.compile(r"\d+/\d+")
_WARMUP_STEPS, _TIMED_STEPS = 4, 16
"""Multiples of the steps whose images are augmented together, four of 128 images on a CPU."""
TRIED_EPOCHS = 12
"""Epochs of the run whose steps are timed; divisible by the usual shares."""


def as_options(settings: Mapping[str, Any], epochs: int) -> list[str]:
    """Settings as `vit train` takes them; a value such as `2/3` is that part of the epochs."""

    def text(value: Any) -> str:
        if not isinstance(value, str):
            return json.dumps(value)  # null, true
        return str(round(Fraction(value) * epochs)) if _SHARE.fullmatch(value) else value

    return [f"--train.epochs={epochs}", *(f"--{name}={text(value)}" for name, value in settings.items())]


def fitting_epochs(config: str, settings: Mapping[str, Any], minutes: float, folder: Path) -> tuple[int, float]:
    """How many fit, to the nearest, and the seconds of one.

    `folder` is only named, not written to.
    """
    seconds = seconds_per_epoch(resolve_run(config, as_options(settings, TRIED_EPOCHS), "FILE"), folder)
    return nearest_epochs(minutes, seconds), seconds


def nearest_epochs(minutes: float, seconds: float) -> int:
    """At least two, so that a share of the epochs is not all of them."""
    return max(2, round(60 * minutes / seconds))


def seconds_per_epoch(resolved: ResolvedRun, folder: Path) -> float:
    """Mean over the epochs of a run, from some steps at each size of its images."""
    return seconds_of(open_session(resolved.config, folder))


def check_long_enough(session: Session) -> None:
    """ValueError where an epoch has too few steps to be timed."""
    batch_size = session.config.data.batch_size  # type: ignore[attr-defined]
    rule = f"an epoch needs more than {_WARMUP_STEPS} steps to be timed"
    check(session.task.train_loader.steps_per_epoch > _WARMUP_STEPS, "data.batch_size", batch_size, rule)


def seconds_of(session: Session) -> float:
    """`seconds_per_epoch` of a run that has been opened."""
    assert isinstance(session.task, Classification)
    check_long_enough(session)
    loader, epoch, total = session.task.train_loader, 0, 0.0
    for count in loader.augment.epochs_by_size(session.config.train.epochs).values():
        session.progress.epoch, session.progress.step_in_epoch = epoch, 0
        total += _seconds_per_step(steps(session)) * count
        epoch += count
    return total * loader.steps_per_epoch / session.config.train.epochs


def _seconds_per_step(taken: Iterator[object]) -> float:
    """The mean, after the first steps, in which the machine warms up and compiles.

    Not the median: one step in every few augments the images of the whole group.
    """
    for _ in islice(taken, _WARMUP_STEPS):
        pass
    begin = time.perf_counter()
    count = sum(1 for _ in islice(taken, _TIMED_STEPS))
    return (time.perf_counter() - begin) / count
