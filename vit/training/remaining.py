"""How long the rest of a run will take, from the steps and validations so far."""

from __future__ import annotations

import time
from typing import NamedTuple

from vit.training.session import Session


class RemainingTime:
    """An estimate from this process's steps in the latest epoch, weighted by the size of their samples, and from its
    validations so far.

    Its first step is left out as soon as there is a second: in it the machine warms up and compiles.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._started, self._first_epoch, self._steps = time.monotonic(), session.progress.epoch, 0
        self._begun = self._since = self._so_far()

    def step_taken(self) -> None:
        self._steps += 1
        if self._steps == 1:
            self._after_first = self._so_far()
        elif self._steps == 2 and self._since == self._begun:
            self._since = self._after_first

    def epoch_begun(self) -> None:
        """The next estimates are of the steps to come, once there is one."""
        self._since = self._so_far()

    @property
    def elapsed(self) -> float:
        """Seconds since the object was made, validation included."""
        return time.monotonic() - self._started

    @property
    def measured(self) -> float:
        """Seconds of the steps that the estimate rests on."""
        return self._so_far().seconds - self._since.seconds if self._steps > 1 else 0.0

    def seconds(self) -> float:
        """Estimate of all steps, validations and checkpoints to come, once a step of the epoch has been taken."""
        so_far, since = self._so_far(), self._since
        to_come = self._session.task.train_loader.cost(self._session.config.train.epochs) - so_far.cost
        training = (so_far.seconds - since.seconds) / (so_far.cost - since.cost) * to_come
        validations = self._validations(self._session.progress.epoch)
        done = validations - self._validations(self._first_epoch)
        left = self._validations(self._session.config.train.epochs) - validations
        between = self.elapsed - (so_far.seconds - self._begun.seconds)
        return training + (between / done * left if done else 0.0)

    def _validations(self, epoch: int) -> int:
        """How many come before an epoch."""
        settings = self._session.config.train
        every = settings.evaluate_every_epochs
        return epoch // every + (epoch == settings.epochs and epoch % every > 0)

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
