"""Runs that an experiment plans: trained one after the other, and continued where the experiment was stopped."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.config import check
from vit.runs import holds_run
from vit.settings import flat_settings, read_run_config
from vit.tasks.classification.config import ClassificationRun
from vit.training.checkpoints import forbidden_changes
from vit.training.interruption import Stopped
from vit.training.loop import train

SHARED = (
    *("data.name", "data.root", "data.test_folder", "data.test_fraction", "data.val_fraction", "data.split_seed"),
    *("data.fake_images", "data.fake_classes", "train.epochs", "seed"),
)
"""Settings that runs must share to be tested on the same images after as many images seen."""


@dataclass(frozen=True)
class PlannedRun:
    recipe: str
    """The name of the recipe, or of the model where each is trained once; its runs take about equally long."""
    title: str
    """For the line that is printed when it begins."""
    config: ClassificationRun
    origins: dict[str, str]
    folder: Path

    @property
    def fraction(self) -> float:
        """The part of the training images."""
        return self.config.data.fraction


def check_shared(configs: Mapping[str, ClassificationRun], settings: Sequence[str] = SHARED) -> None:
    """ValueError for configurations that differ in one of the settings, naming it."""
    first, *others = configs
    ours = flat_settings(configs[first])
    for name in others:
        theirs = flat_settings(configs[name])
        for key in settings:
            rule = f"{first} has {ours[key]!r}; the comparison is of the same images and as many of them seen"
            check(theirs[key] == ours[key], f"{name}: {key}", theirs[key], rule)


def train_runs(runs: Sequence[PlannedRun]) -> list[dict[str, Any]]:
    """Train what is not finished yet, and return the summary of every run.

    A finished run is recognised by its summary and its settings; one that was stopped continues. ValueError, before
    anything is trained, for a folder that holds a run with other settings; `Stopped` after a signal.
    """
    found = [_finished(run) for run in runs]
    costs: dict[str, list[float]] = {}
    for run, summary in zip(runs, found, strict=True):
        if summary is not None:
            costs.setdefault(run.recipe, []).append(summary["seconds"])
    summaries = []
    for place, (run, summary) in enumerate(zip(runs, found, strict=True)):
        if summary is None:
            left = [other.recipe for other, done in zip(runs[place:], found[place:], strict=True) if done is None]
            print(f"[{place + 1}/{len(runs)}] {run.title}{_expected_end(costs, left)}", file=sys.stderr, flush=True)
            summary = _train(run, costs)
        summaries.append(summary)
    return summaries


def _finished(run: PlannedRun) -> dict[str, Any] | None:
    """The summary of a run that is done."""
    if not holds_run(run.folder):
        return None
    before, origins = read_run_config(run.folder / "config.yaml")
    for key, (old, new) in forbidden_changes(before, run.config, origins).items():
        raise ValueError(
            f"{key}: {new!r} is not valid: the run in {str(run.folder)!r} was started with {old!r}; "
            "compare as before, or into another --output_dir"
        )
    summary = run.folder / "summary.json"
    return dict(json.loads(summary.read_text())) if summary.is_file() else None


def _train(run: PlannedRun, costs: dict[str, list[float]]) -> dict[str, Any]:
    """Train or continue one run; what a whole one took is added to `costs`."""
    continues, started = holds_run(run.folder), time.monotonic()
    try:
        summary = train(run.config, run.folder, resume=continues, origins=run.origins)
    except Stopped as stopped:
        remedy = "the same command continues the comparison"
        raise Stopped(stopped.signal_number, stopped.step, remedy) from None
    if not continues:
        costs.setdefault(run.recipe, []).append(time.monotonic() - started)
    return summary


def _expected_end(costs: Mapping[str, Sequence[float]], left: Sequence[str]) -> str:
    """When the remaining recipes will be trained; one that has not run yet is taken for the slowest known."""
    means = {recipe: sum(seconds) / len(seconds) for recipe, seconds in costs.items()}
    if not means:
        return ""
    seconds = sum(means.get(recipe, max(means.values())) for recipe in left)
    end = time.strftime("%a %H:%M", time.localtime(time.time() + seconds))
    return f"; about {seconds / 60:.1f} minutes left, until {end}"


def check_same_images(rows: Sequence[dict[str, Any]]) -> None:
    """ValueError where runs of one part and seed trained on other images, or validated on others: files can change."""
    seen: dict[Any, str] = {}
    for row in rows:
        subset, validation = row["data.fingerprint"].split("+")
        for what, found in (((row["fraction"], row["seed"]), subset), ("validation", validation)):
            if seen.setdefault(what, found) != found:
                raise ValueError(
                    f"--output_dir: the data of {row['run']!r} are not those of the runs before it; "
                    "remove the runs whose data have changed since, or choose another folder"
                )
