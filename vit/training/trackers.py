"""Experiment trackers beside `metrics.jsonl`: TensorBoard, Weights & Biases and MLflow, through Accelerate.

They hold a copy of the history. One that fails during training is left out with a line, and the run goes on. A
continued run goes on in the same entry of Weights & Biases and MLflow, named in the run folder's `trackers.json`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import is_mlflow_available, is_tensorboard_available, is_wandb_available

from vit.config import RunConfig, check
from vit.config.run import Tracker
from vit.runs import write_json

PROJECT = "vit"
"""Project (Weights & Biases) or experiment (MLflow), unless WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME names another."""
_AVAILABLE: Mapping[Tracker, Callable[[], bool]] = {
    "tensorboard": is_tensorboard_available,
    "wandb": is_wandb_available,
    "mlflow": is_mlflow_available,
}


def tracker_options(config: RunConfig, run: Path) -> dict[str, Any]:
    """Arguments of the `Accelerator`. ValueError for trackers that are not installed."""
    wanted = config.train.trackers
    missing = [name for name in wanted if not _AVAILABLE[name]()]
    rule = f"{' and '.join(missing)} cannot be imported; pip install {' '.join(missing)}"
    check(not missing, "train.trackers", list(wanted), rule)
    return {"log_with": list(wanted), "project_dir": str(run)} if wanted else {}


def start_trackers(accelerator: Accelerator, config: RunConfig, run: Path, *, resumed: bool) -> None:
    """Begin an entry in each tracker, or go on in the one that the run has. ValueError for one that cannot start.

    Every process calls it; the main one writes.
    """
    wanted = config.train.trackers
    if not wanted:
        return
    names_file = run / "trackers.json"
    names = json.loads(names_file.read_text()) if resumed and names_file.is_file() else {}
    options = {
        "wandb": {"name": run.name, "dir": str(run), "id": names.get("wandb"), "resume": "allow"},
        "mlflow": {"run_name": run.name, "run_id": names.get("mlflow")},
    }
    project = os.environ.get("WANDB_PROJECT", PROJECT) if "wandb" in wanted else PROJECT
    try:
        accelerator.init_trackers(project, init_kwargs={name: options[name] for name in wanted if name in options})
        for tracker in accelerator.trackers:
            # a continued entry has its settings already, and MLflow refuses one that has changed
            if tracker.name not in names:
                tracker.store_init_configuration(_flat(asdict(config)))
    except Exception as error:  # what a client raises without a login or a server is its own
        for tracker in accelerator.trackers:
            with suppress(Exception):  # those that were not started cannot be finished
                tracker.finish()
        accelerator.trackers.clear()
        rule = f"it could not be started ({type(error).__name__}: {_one_line(error)})"
        raise ValueError(f"train.trackers: {list(wanted)} is not valid: {rule}") from error
    entries = {tracker.name: _entry(tracker) for tracker in accelerator.trackers}
    if accelerator.is_main_process and entries:
        write_json(names_file, names | entries)


def log_to_trackers(accelerator: Accelerator, record: Mapping[str, float], step: int) -> None:
    """Send a line of the history; a tracker that fails is left out from here on."""
    for tracker in list(accelerator.trackers):
        try:
            tracker.log(dict(record), step=step)
        except Exception as error:  # noqa: BLE001 (a lost connection must not end hours of training)
            accelerator.trackers.remove(tracker)
            print(
                f"train.trackers: {tracker.name} failed at step {step} and gets no more lines; metrics.jsonl has them "
                f"all ({type(error).__name__}: {_one_line(error)})",
                file=sys.stderr,
            )


@contextmanager
def trackers_ended(accelerator: Accelerator) -> Iterator[None]:
    """Close the entries when the training ends, however it does: another run in this process begins its own."""
    try:
        yield
    finally:
        end_trackers(accelerator)


def end_trackers(accelerator: Accelerator) -> None:
    """Close the entries. Accelerate's `end_training` would part the processes too, which have more to do together."""
    for tracker in accelerator.trackers:
        try:
            tracker.finish()
        except Exception as error:  # noqa: BLE001 (the run is finished, whatever its copy is)
            line = f"train.trackers: {tracker.name} could not be closed ({type(error).__name__}: {_one_line(error)})"
            print(line, file=sys.stderr)
    accelerator.trackers.clear()


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str | float]:
    """Settings by their dotted names, without those that are not set; what is no number is a text."""
    flat: dict[str, str | float] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        elif value is not None:
            flat[f"{prefix}{name}"] = value if isinstance(value, bool | int | float) else str(value)
    return flat


def _entry(tracker: Any) -> str:
    """The name under which the tracker knows the run; TensorBoard's, its folder in the run's."""
    if tracker.name == "tensorboard":
        return PROJECT
    return str(tracker.tracker.id if tracker.name == "wandb" else tracker.tracker.info.run_id)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
