"""`vit eval`: a trained checkpoint on a test set, by the task that it was trained for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.config import ClassificationRun, RegressionRun, TranslationRun
from vit.runs import find_checkpoint, read_checkpoint
from vit.settings import run_config_from


@dataclass(frozen=True)
class Request:
    """What is evaluated: a run or checkpoint folder, and how."""

    checkpoint: Path
    select: str = "best"
    weights: str = "auto"
    image_size: int | None = None
    """Evaluate at another size than the model was trained at; positions are resized."""
    transfer: bool = False
    """Also judge the frozen features: k-NN, few-shot linear, linear probe."""
    output_dir: Path | None = None
    """None: `predictions/` of the run."""
    overrides: Sequence[str] = ()

    @property
    def folder(self) -> Path:
        """Where results are written."""
        place = self.checkpoint.resolve()  # a path as `.` has no parent
        run = place if (place / "checkpoints").is_dir() else place.parent.parent
        return self.output_dir or run / "predictions"


def trained_as(checkpoint: Path) -> str:
    """The task of a run or checkpoint folder: `classification`, `translation` or `regression`."""
    return run_config_from(read_checkpoint(find_checkpoint(checkpoint, "last"), []).state["config"]).task


def evaluate_checkpoint(request: Request) -> dict[str, Any]:
    """Evaluate on the test set, store predictions, metrics and a figure, and return the metrics.

    ValueError when the data or settings asked for do not fit the checkpoint.
    """
    from vit.evaluation.classifier_checkpoint import evaluate_classifier
    from vit.evaluation.regressor_checkpoint import evaluate_regressor
    from vit.evaluation.translator_checkpoint import evaluate_translator

    state = read_checkpoint(find_checkpoint(request.checkpoint, request.select), []).state
    trained = run_config_from(state["config"])
    match trained:
        case ClassificationRun():
            return evaluate_classifier(request, trained)
        case TranslationRun():
            return evaluate_translator(request, trained)
        case RegressionRun():
            return evaluate_regressor(request, trained)
    raise AssertionError(f"no evaluation for {type(trained).__name__}")
