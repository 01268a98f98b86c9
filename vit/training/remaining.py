"""How long the rest of a run will take, from the steps and validations so far."""

from __future__ import annotations

import time
from typing import NamedTuple

from vit.training.session import Session


class RemainingTime:
    """An estimate from the steps of this process, weighed by the size of their samples, and from its validations.

    The first step is left out as soon as there is a second: in it the machine warms up and compiles.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._started, self._first_epoch = time.monotonic(), session.progress.epoch
        self._steps = 0
        self._begun = self._after_first = self._so_far()

    def step_taken(self) -> None:
        self._steps += 1
        if self._steps == 1:
            self._after_first = self._so_far()

    @property
    def elapsed(self) -> float:
        """Seconds since the object was made, validation included."""
        return time.monotonic() - self._started

    @property
    def measured(self) -> float:
        """Seconds of the steps after the first."""
        return self._so_far().seconds - self._after_first.seconds

    def seconds(self) -> float:
        """Estimate of all steps, validations and checkpoints to come, once a step has been taken."""
        progress, epochs, so_far = self._session.progress, self._session.config.train.epochs, self._so_far()
        since = self._after_first if self._steps > 1 else self._begun
        to_come = self._session.task.train_loader.cost(epochs) - so_far.cost
        training = (so_far.seconds - since.seconds) / (so_far.cost - since.cost) * to_come
        ended = progress.epoch - self._first_epoch
        between = self.elapsed - (so_far.seconds - self._begun.seconds)
        return training + (between / ended * (epochs - progress.epoch) if ended else 0.0)

    def _so_far(self) -> _SoFar:
        progress, loader = self._session.progress, self._session.task.train_loader
        before, after = loader.cost(progress.epoch), loader.cost(progress.epoch + 1)
        done = progress.step_in_epoch / loader.steps_per_epoch
        return _SoFar(before + done * (after - before), progress.seconds)


class _SoFar(NamedTuple):
    cost: float
    """Epochs, as `Loader.cost` counts them."""
    seconds: float
    """Time spent training."""
