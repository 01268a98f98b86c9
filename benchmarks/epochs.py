"""How many epochs of a recipe fit into a time on this machine, measured with its own steps."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from vit.config import check
from vit.config.validation import setting_types
from vit.settings import ResolvedRun, resolve_run
from vit.tasks.classification.config import ClassificationRun
from vit.tasks.classification.training import Classification
from vit.training.loop import StepResult, steps
from vit.training.optim import parameter_groups
from vit.training.session import Session, open_session

_SHARE = re.compile(r"\d+/0*[1-9]\d*")
_WARMUP_STEPS, _TIMED_STEPS = 4, 16
"""At least; more where the steps whose images are augmented together are not as many."""
TRIED_EPOCHS = 12
"""Epochs of the run whose steps are timed; divisible by the usual shares."""
FEWEST_EPOCHS = 2
"""So that a share of the epochs is not all of them."""


def as_options(settings: Mapping[str, Any], epochs: int) -> list[str]:
    """Settings as `vit train` takes them; the value `2/3` of a number is that part of the epochs."""

    def text(name: str, value: Any) -> str:
        if not isinstance(value, str):
            return json.dumps(value)  # null, true
        is_share = _SHARE.fullmatch(value) and _takes_number(name)
        return str(round(Fraction(value) * epochs)) if is_share else value

    return [f"--train.epochs={epochs}", *(f"--{name}={text(name, value)}" for name, value in settings.items())]


def _takes_number(name: str) -> bool:
    """Whether a setting, called by its dotted name or by the last part of it, takes a number."""
    types = setting_types(ClassificationRun).items()
    hints = (hint for setting, hint in types if name in (setting, setting.rpartition(".")[2]))
    return any({int, float} & {hint, *get_args(hint)} for hint in hints)


def fitting_epochs(config: str, settings: Mapping[str, Any], minutes: float, folder: Path) -> tuple[int, float]:
    """How many fit, to the nearest, and the seconds of one.

    `folder` is only named, not written to.
    """
    seconds = seconds_per_epoch(resolve_run(config, as_options(settings, TRIED_EPOCHS), "FILE"), folder)
    return nearest_epochs(minutes, seconds), seconds


def nearest_epochs(minutes: float, seconds: float) -> int:
    """At least `FEWEST_EPOCHS`."""
    return max(FEWEST_EPOCHS, round(60 * minutes / seconds))


def said_of_fewest(minutes: float, seconds: float) -> str:
    """For the line about an epoch's seconds, where the minutes hold fewer epochs than are trained; else empty."""
    fitting = 60 * minutes / seconds
    if round(fitting) >= FEWEST_EPOCHS:
        return ""
    return f" (the minutes hold {fitting:.1f} epochs; {FEWEST_EPOCHS} is the fewest)"


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
    for group in parameter_groups(session.optimizers):  # nothing is learned, so that no step can diverge
        group["lr_scale"] = 0.0
    loader, epoch, total = session.task.train_loader, 0, 0.0
    for count in loader.augment.epochs_by_size(session.config.train.epochs).values():
        total += _seconds_per_step(session, epoch) * count
        epoch += count
    return total * loader.steps_per_epoch / session.config.train.epochs


def _seconds_per_step(session: Session, epoch: int) -> float:
    """The mean over steps of that epoch, after the first ones, in which the machine warms up and compiles.

    Not the median: one step in every few augments the images of its whole group. So whole groups are timed; where too
    few steps are left for one, the epoch begins again and all of it is timed.
    """
    assert isinstance(session.task, Classification)
    loader = session.task.train_loader
    taken = _steps_of(session, epoch)
    next(taken)
    group = loader.steps_together  # of the epoch's first group, which no other exceeds
    warmup, timed = (group * math.ceil(least / group) for least in (_WARMUP_STEPS, _TIMED_STEPS))
    if loader.steps_per_epoch < warmup + group:
        sum(1 for _ in taken)
        taken, timed = _steps_of(session, epoch), loader.steps_per_epoch
    else:
        sum(1 for _ in islice(taken, warmup - 1))
    begin = time.perf_counter()
    count = sum(1 for _ in islice(taken, timed))
    return (time.perf_counter() - begin) / count


def _steps_of(session: Session, epoch: int) -> Iterator[StepResult]:
    session.progress.epoch, session.progress.step_in_epoch = epoch, 0
    return steps(session)
