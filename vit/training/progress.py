"""A step that was taken, and the counters of a run: all that changes from step to step besides tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vit.data.loading import Step


class StepResult(NamedTuple):
    """An optimizer step that has been taken."""

    num_samples: int
    """Over all processes."""
    loss: float
    weight: float
    """Images or target tokens that `loss` is the mean of, over all processes."""
    rate: float
    stop_signal: int
    """The number of the signal that asked a process to stop, the same on every process; 0 if there was none."""


@dataclass
class RunCounters:
    """A session's counters, which a checkpoint holds."""

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    samples_seen: int = 0
    seconds: float = 0.0
    """Time spent training, evaluation left out."""
    window: dict[str, float] = field(
        default_factory=lambda: {"loss": 0.0, "hits": 0.0, "normalizer": 0.0, "samples": 0.0, "seconds": 0.0}
    )
    """Sums since the last logged line."""
    best: dict[str, float] | None = None
    """Step and value of the best validation so far, of the last one among equals."""
    stretches: list[dict[str, Any]] = field(default_factory=list)
    """From which step on, on which machine and at which commit of this package the run was trained."""

    def begin_stretch(self, machine: str, commit: str | None) -> None:
        """Record where the next steps are taken. Where nothing was recorded of the steps before, that is unknown."""
        known = self.stretches or [{"from_step": 0, "machine": None, "commit": None}]
        before = [stretch for stretch in known if stretch["from_step"] < self.step]
        now = {"machine": machine, "commit": commit}
        if not before or {**before[-1], **now} != before[-1]:
            before.append({"from_step": self.step, **now})
        self.stretches = before

    def join_stretches(self, fact: str) -> str | None:
        """The run's `machine` or `commit`: the names of all its parts, each but the last with the step that ended it.

        None where one of them is not known.
        """
        names = [stretch[fact] for stretch in self.stretches]
        if not names or None in names:
            return None
        parts = [
            f"{name}, to step {following['from_step']:,}"
            for name, following in zip(names, self.stretches[1:], strict=False)
            if following[fact] != name
        ]
        return "; ".join([*parts, names[-1]])

    def count(self, step: Step, loss: float, accuracy: float, seconds: float) -> None:
        """Add a step that was taken: its mean loss, its accuracy and its time."""
        self.step += 1
        self.step_in_epoch += 1
        self.samples_seen += step.num_samples
        self.seconds += seconds
        self.window["loss"] += loss * step.normalizer
        self.window["hits"] += accuracy * step.normalizer
        self.window["normalizer"] += step.normalizer
        self.window["samples"] += step.num_samples
        self.window["seconds"] += seconds

    def close_window(self) -> dict[str, float]:
        """The sums so far; the next ones begin at 0."""
        closed, self.window = self.window, RunCounters().window
        return closed
