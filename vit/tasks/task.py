"""The two protocols of a task: the training loop works with a `Task`, `vit plan` and the end of a run with a `Report`.

No code outside a task's folder knows what its samples are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from vit.config import RunConfig
    from vit.data.loading import Step
    from vit.data.splits import Split
    from vit.evaluation.transfer_evaluation import TransferOptions
    from vit.models.model import Model


Rates = tuple[Sequence[float], Sequence[float]]
"""Samples seen before a step, and the learning rate of it."""


class NonFinite(RuntimeError):
    """The loss, a gradient or a prediction is not a finite number; the weights were not changed by it."""


@dataclass(frozen=True, kw_only=True)
class TaskInfo:
    """Facts of a run for its logs, checkpoints and summary."""

    model_name: str
    dataset: str
    fingerprint: str
    """Changes with the training or validation data."""
    unit: str
    """The samples' name in the plural, as in `images_per_second`."""
    metric: str
    """The validation metric that chooses the best checkpoint, the last one of equals."""
    metric_is_fraction: bool = False
    """`metric` is shown in percent while it trains."""
    higher_is_better: bool = True
    has_accuracy: bool = False
    """Answers are right or wrong, so a training accuracy is logged."""
    accuracies: Sequence[str] = ()
    """Validation metrics that are shown beside `metric` while it trains, fractions."""
    notes: Sequence[str] = ()
    """Lines for the user when a run begins."""
    from_weights: Sequence[str] = ()
    """Settings that were not set, and that the pretrained weights decided."""
    images: tuple[Split, Split] | None = None
    """Training and validation images, of a task that has them; where they are files, the run keeps their list."""

    def is_as_good(self, value: float, best: float) -> bool:
        return value >= best if self.higher_is_better else value <= best


class Loader(Protocol):
    """One process's share of a training set; what a step holds depends on (seed, epoch, step) alone."""

    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def samples_per_epoch(self) -> int: ...
    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Step]: ...
    def cost(self, epochs: int) -> float:
        """Approximate cost of the first `epochs`; one whose samples have their full size costs 1."""


class Task(Protocol):
    """A model with its training and validation data, opened from a run's settings."""

    info: TaskInfo

    @property
    def config(self) -> RunConfig:
        """The run's settings, with those that only the pretrained weights tell."""

    @property
    def model(self) -> Model:
        """Not yet prepared for several processes."""

    @property
    def train_loader(self) -> Loader: ...

    def prepare(self, batch: Any, device: torch.device) -> Any:
        """Move a micro-batch of the loader to the device, and augment it where the task augments.

        `batch.indices` (b,) are those that `sample_name` takes; what is returned has `weights` (b,), which multiply the
        samples' losses.
        """

    def losses(self, model: nn.Module, batch: Any, epoch: int) -> tuple[Tensor, Tensor]:
        """Losses and hits (0 without accuracy) of a prepared batch, both (b,).

        The loop multiplies them by the batch's `weights`, sums over a step and divides by `Step.normalizer`.
        """

    def sample_name(self, index: int) -> str:
        """The name of a training sample, for messages about it."""

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Metrics on the validation set, the same on every process. Raises `NonFinite`."""

    def state(self) -> dict[str, Any]:
        """JSON for a checkpoint: what its weights need to be used without this run. Every process calls it."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint's `state`."""


class Report(Protocol):
    """A run's plan before it starts, and its results when it has ended; made from its `Task`."""

    def describe(self) -> dict[str, str]:
        """Rows about the model and the data, for the header of a run and for `vit plan`."""

    def plan(self, precision: str) -> dict[str, str]:
        """More rows of `vit plan`: what the run will cost."""

    def test(self, model: nn.Module, state: dict[str, Any], /) -> Any:
        """Results on the test set, the same on every process: the argument of `summary` and `write`.

        `state`: the task's in the checkpoint that the weights are of.
        """

    def summary(self, best: Any, last: Any) -> dict[str, Any]:
        """The task's numbers for `summary.json`, from the results of two checkpoints. Every process calls it."""

    def write(self, run: Path, best: Any, summary: dict[str, Any], rates: Rates | None, /) -> None:
        """Write predictions, figures and model card into the run folder.

        `rates`: the learning rate's exact curve; None where only the logged rates are known.
        """


@dataclass(frozen=True)
class EvalRequest:
    """A run or checkpoint folder, and how `vit eval` evaluates it; data, device and precision are settings."""

    checkpoint: Path
    select: Literal["best", "last"] = "best"
    weights: Literal["auto", "raw", "ema"] = "auto"
    image_size: int | None = None
    """Evaluate at another size than the model was trained at; positions are resized."""
    dtype: Literal["auto", "int8"] = "auto"
    """`int8`: multiply bytes in the blocks."""
    transfer: TransferOptions | None = None
    """Also evaluate the frozen features: k-NN, few-shot linear, linear probe."""
    output_dir: Path | None = None
    """None: `predictions/` of the run."""

    @property
    def chosen(self) -> str:
        """The checkpoint in the names of files: `best`, `last`, or the folder's own name where one is given."""
        return self.checkpoint.resolve().name if (self.checkpoint / "state.json").is_file() else self.select

    @property
    def folder(self) -> Path:
        """The folder that results are written to."""
        place = self.checkpoint.resolve()  # a path as `.` has no parent
        run = place if (place / "checkpoints").is_dir() else place.parent.parent
        return self.output_dir or run / "predictions"
