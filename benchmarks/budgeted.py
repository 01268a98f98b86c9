"""Trainings of a list, each for as many epochs as its minutes hold, but at least two, in calls of limited time that
continue each other.

The list is YAML:

    settings: {data.name: imagefolder}          # of every run
    rehearsal: {data.fraction: 0.01}            # of every run, instead of others, where the list is only rehearsed
    runs:
      resnet: {config: cifar10_resnet, minutes: 9, settings: {data.root: data/cifar10-full}}

A call trains what is not finished, in the list's order. When its time is over the run in training is stopped as by
SIGTERM, and the next call continues it. NAME.json beside a run says what the list asked for when it was begun.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ablation import KEPT
from benchmarks.epochs import TRIED_EPOCHS, as_options, fitting_epochs, said_of_fewest
from vit.config import check
from vit.config.yaml_files import read_yaml
from vit.processor import machine
from vit.runs import holds_run, make_folder, write_json
from vit.settings import flat_settings, resolve_run
from vit.tasks.classification import require_classification
from vit.wording import markdown_table

REHEARSAL_MINUTES = 0.02
"""In place of those of the list."""
_SAVING = 60.0
"""Seconds that a run has, after SIGTERM, to write its checkpoint."""
_STOPPED = (128 + signal.SIGTERM, -signal.SIGTERM)
"""With a checkpoint, or before the run had begun."""


@dataclass(frozen=True)
class BudgetedRun:
    name: str
    config: str
    minutes: float
    settings: Mapping[str, Any]


class RunFailed(ValueError):
    """A training ended with an error; it has told of it itself."""


def read_list(path: Path, *, rehearse: bool) -> list[BudgetedRun]:
    """ValueError for a file that is not as the module says."""
    content = read_yaml(path, "FILE")
    unknown = sorted(map(str, set(content) - {"settings", "rehearsal", "runs"}))
    check(not unknown, "FILE", str(path), f"it has no section {unknown[:1]}; settings, rehearsal and runs")
    common = {name: _settings(content, name) for name in ("settings", "rehearsal")}
    runs = content.get("runs")
    check(isinstance(runs, dict) and bool(runs), "runs", runs, "name at least one, each with config and minutes")
    found = list[BudgetedRun]()
    assert isinstance(runs, dict)
    for name, own in runs.items():
        is_folder = isinstance(name, str) and Path(name).name == name and name not in ("", "..")
        check(is_folder, "runs", name, "a run's name is text, and a folder's")
        fits = isinstance(own, dict) and {"config", "minutes"} <= set(own) <= {"config", "minutes", "settings"}
        check(fits, f"runs.{name}", own, "it has config, minutes and, if any, settings")
        config, minutes = own["config"], own["minutes"]
        check(isinstance(config, str), f"runs.{name}.config", config, "name a configuration or its file")
        is_number = isinstance(minutes, (int, float)) and not isinstance(minutes, bool)
        check(is_number and 0 < minutes < math.inf, f"runs.{name}.minutes", minutes, "it must be above 0, and finite")
        settings = {**common["settings"], **_settings(own, "settings"), **(common["rehearsal"] if rehearse else {})}
        found.append(BudgetedRun(name, config, REHEARSAL_MINUTES if rehearse else minutes, settings))
    return found


def _settings(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    settings = section.get(name) or {}
    check(isinstance(settings, dict), name, settings, "settings are names with their values")
    return dict(settings)


def train_list(runs: list[BudgetedRun], folder: Path, minutes: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Train for at most so many minutes; `unfinished` are the names of runs that the next call continues or begins.

    A run that fails is told, and the others are trained before it ends in a ValueError. That is raised too, before any
    is trained, for one of another task and for one that was begun with other settings or minutes.
    """
    for run in runs:
        resolved = resolve_run(run.config, as_options(run.settings, TRIED_EPOCHS), f"runs.{run.name}.config")
        require_classification(resolved.config, f"runs.{run.name}.config", run.config)
        _check_begun(run, folder)
    deadline, rows, unfinished, failed = time.monotonic() + 60 * minutes, [], [], list[str]()
    for run in runs:
        summary = folder / run.name / "summary.json"
        if not summary.is_file() and time.monotonic() < deadline:
            try:
                _train(run, folder, deadline, say)
            except RunFailed as error:
                say(str(error))
                failed.append(str(error))
        if summary.is_file():
            told = json.loads(summary.read_text())
            rows.append({"run": run.name, "minutes": run.minutes, **{name: told.get(name) for name in KEPT}})
            say(f"{run.name}: {told['test.top1']:.2%} after {told['epochs']} epochs, {told['seconds']:.0f} s of steps")
        else:
            unfinished.append(run.name)
    if failed:
        raise ValueError("; ".join(failed))
    return {"runs": rows, "unfinished": unfinished, "machine": machine(rows[0]["device"] if rows else "cpu")}


def _record_of(run: BudgetedRun, folder: Path) -> Path:
    return folder / f"{run.name}.json"


def _asked(run: BudgetedRun) -> dict[str, Any]:
    """All that a run is trained with but its epochs, as JSON gives it back."""
    resolved = resolve_run(run.config, as_options(run.settings, TRIED_EPOCHS), f"runs.{run.name}.config")
    asked = {"minutes": run.minutes, **flat_settings(resolved.config)}
    return dict(json.loads(json.dumps(asked)))


def _check_begun(run: BudgetedRun, folder: Path) -> None:
    """ValueError for a run that was begun as another one. Those of earlier versions have no record."""
    file = _record_of(run, folder)
    if not (holds_run(folder / run.name) and file.is_file()):
        return
    try:
        before = dict(json.loads(file.read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"runs.{run.name}: {file}, which says how it was begun, is damaged: {error}") from error
    asked = _asked(run)
    for name in sorted(asked.keys() & before.keys()):  # a later version may have other settings
        rule = f"{folder / run.name} was begun with {before[name]!r}; give the run another name"
        check(before[name] == asked[name], f"runs.{run.name}.{name}", asked[name], rule)


def _train(run: BudgetedRun, folder: Path, deadline: float, say: Callable[[str], None]) -> None:
    """Train or continue a run until it is finished or the time is over."""
    place = folder / run.name
    if holds_run(place):
        words = ["--resume", str(place)]
    else:
        epochs, seconds = fitting_epochs(run.config, run.settings, run.minutes, place)
        note = said_of_fewest(run.minutes, seconds)
        say(f"{run.name}: {seconds:.2f} s an epoch, {epochs} epochs in {run.minutes:g} minutes{note}")
        words = ["--config", run.config, *as_options(run.settings, epochs), "--output_dir", str(place)]
        make_folder(folder)
        write_json(_record_of(run, folder), _asked(run))
    with subprocess.Popen([sys.executable, "-m", "vit.cli", "train", *words]) as process:
        try:
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(_SAVING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = -signal.SIGTERM
                say(f"{run.name}: killed, as it took more than {_SAVING:g} s to save; its last checkpoint is continued")
    if code not in (0, *_STOPPED):
        raise RunFailed(f"{run.name}: `vit train {' '.join(words)}` ended with exit code {code}")


def table(result: Mapping[str, Any]) -> str:
    """Markdown: a row for each finished run."""
    rows = [
        (row["run"], str(row["epochs"]), f"{row['seconds']:.0f}", f"{row['test.top1']:.2%}", f"{row['gmacs']:.3f} G")
        for row in result["runs"]
    ]
    return markdown_table(("run", "epochs", "seconds of steps", "test top-1", "multiply-adds"), rows)
