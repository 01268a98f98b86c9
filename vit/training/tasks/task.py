"""What a run trains, and how it is judged: the one thing in which training images and sentences differ.

The loop, the checkpoints and the end of a run know a `Task` and nothing of what its samples are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from vit.data.loading import Step
from vit.models.model import Model


@dataclass(frozen=True)
class Goal:
    """The validation metric that chooses the best checkpoint."""

    metric: str
    higher_is_better: bool = True

    def is_beaten_by(self, value: float, best: float) -> bool:
        return value > best if self.higher_is_better else value < best


class Loader(Protocol):
    """The epochs of a training set, as one process sees them; what a step holds depends on (seed, epoch, step)."""

    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def samples_per_epoch(self) -> int: ...
    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Step]: ...


class Task(Protocol):
    """Made from a run's settings, it has opened the data and built the model; nothing of it changes in training."""

    @property
    def unit(self) -> str:
        """What a sample is called, in the plural."""

    @property
    def goal(self) -> Goal: ...
    @property
    def counts_hits(self) -> bool:
        """Whether an answer is right or wrong, so that a training accuracy is logged."""

    @property
    def model(self) -> Model:
        """Before it is prepared for several processes."""

    @property
    def model_name(self) -> str: ...
    @property
    def dataset(self) -> str: ...
    @property
    def train_loader(self) -> Loader: ...
    @property
    def fingerprint(self) -> str:
        """Of the training and validation data."""

    def notes(self) -> list[str]:
        """What the user should be told when a run begins."""

    def losses(self, model: nn.Module, batch: Any, epoch: int) -> tuple[Tensor, Tensor]:
        """Losses and hits, both (b,), of a batch on the device; their sums are divided by `Step.normalizer`. Hits are 0
        where none are counted.
        """

    def names(self, indices: list[int]) -> list[str]:
        """What the training samples are called, for a complaint about them."""

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Metrics on the validation set, the same on every process. `NonFinite` for answers that are no numbers."""

    def test(self, model: nn.Module) -> Any:
        """The test set's results, the same on every process: what `summary` and `write` take."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint must say besides weights, so that it can be used without this run; every process asks."""

    def recall(self, state: dict[str, Any]) -> None:
        """Take over what a checkpoint's `state` says of the run so far."""

    def summary(self, best: Any, last: Any) -> dict[str, Any]:
        """The run's measured numbers beside those that every run has; every process asks."""

    def write(self, run: Path, best: Any, summary: dict[str, Any]) -> None:
        """Predictions, figures and card in the run folder."""

    def plan(self, precision: str) -> dict[str, str]:
        """Rows of `vit plan` about this task's data and costs."""
