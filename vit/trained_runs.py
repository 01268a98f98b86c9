"""A trained run's settings and its evaluation, whatever its task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit.config import RunConfig
from vit.config.run_state import check_state
from vit.runs import find_checkpoint, read_checkpoint
from vit.settings import override, run_config_from
from vit.tasks import TASKS
from vit.tasks.task import EvalRequest


def trained_settings(
    run: Path, select: str = "best", overrides: Sequence[str] = (), allowed: Sequence[str] | None = None
) -> RunConfig:
    """The settings of a run or checkpoint folder, with the command line's put over them.

    `allowed`: settings and sections that these may be; None: those that `vit eval` can override. ValueError for others.
    """
    checkpoint = read_checkpoint(find_checkpoint(run, select), [])
    check_state(checkpoint.state, checkpoint.path, ["config"])
    config = run_config_from(checkpoint.state["config"])
    return override(config, overrides, config.evaluation_settings if allowed is None else allowed)


def evaluate_checkpoint(request: EvalRequest, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Evaluate on the test set, store predictions, metrics and a figure, and return the metrics.

    ValueError when the data or settings asked for do not fit the checkpoint.
    """
    config = trained_settings(request.checkpoint, request.select, overrides)
    return TASKS[config.task].evaluate(request, config)
