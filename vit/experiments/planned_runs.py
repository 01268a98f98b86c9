"""Runs that an experiment plans: trained one after the other or several at once, and continued where the experiment was
stopped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.config import DataConfig, check
from vit.data.images import fingerprint, open_test, open_training
from vit.evaluation.predictions import Predictions
from vit.experiments.jobs import Job, check_at_once, run_jobs
from vit.progress import duration
from vit.runs import holds_run, read_summary
from vit.settings import flat_settings, read_run_config
from vit.tasks.classification.config import ClassificationRun
from vit.tasks.task import NonFinite
from vit.training.allowed_changes import forbidden_changes
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


def check_folders(runs: Sequence[PlannedRun]) -> None:
    """ValueError for a folder that holds a run with other settings, or one of other images."""
    _finished_runs(runs)


def train_runs(
    runs: Sequence[PlannedRun],
    at_once: int = 1,
    to_follow: Sequence[str] = (),
    *,
    may_diverge: bool = False,
    took: dict[Path, float] | None = None,
    finished: Callable[[PlannedRun, dict[str, Any]], None] = lambda _run, _summary: None,
) -> list[dict[str, Any]]:
    """Train what is not finished yet, and return the summary of every run.

    `at_once`: how many are trained at the same time, each in a process of its own, whose lines go to `train.log` in its
    folder. `to_follow`: the recipes of runs that another call will train, for the count and the remaining time that are
    printed. `may_diverge`: a run whose loss stops being finite has an empty summary, instead of ending all of them.
    `took`: seconds that whole runs took, by folder; the calls of one experiment share it and add to it. For other
    finished runs only the seconds of their steps are known. `finished` is told every run with its summary as soon as it
    has one. A finished run is recognised by its summary and its settings; one that was stopped continues. ValueError,
    before anything is trained, for a folder that holds a run with other settings; `Stopped` after a signal; otherwise
    as `train`, and as `run_jobs` where there are several at once.
    """
    check_at_once(at_once)
    state = _State(runs, _finished_runs(runs), at_once, to_follow, {} if took is None else took)
    left = state.left()
    for run, summary in zip(runs, state.summaries, strict=True):
        if summary is not None:
            finished(run, summary)

    def ended(place: int, summary: dict[str, Any]) -> None:
        state.ended(place, summary)
        finished(runs[place], summary)

    train_one = _train_or_diverge if may_diverge else _train
    try:
        if at_once == 1:
            for place in left:
                state.begun(place)
                ended(place, train_one(runs[place]))
        else:
            jobs = {place: Job(runs[place].title, train_one, (runs[place],), _log(runs[place])) for place in left}
            run_jobs(jobs, at_once, state.begun, ended)
    except Stopped as stopped:
        raise Stopped(stopped.signal_number, stopped.step, "the same command continues the comparison") from None
    return [summary for summary in state.summaries if summary is not None]


class _State:
    """Which of the planned runs are finished, how long they took, and when the others will be."""

    def __init__(
        self,
        runs: Sequence[PlannedRun],
        summaries: list[dict[str, Any] | None],
        at_once: int,
        to_follow: Sequence[str],
        took: dict[Path, float],
    ) -> None:
        self.summaries = summaries
        self._runs, self._at_once, self._to_follow, self._took = runs, at_once, to_follow, took
        self._begun: dict[int, float] = {}
        """When a run began, of those that did not continue."""
        self._costs: dict[str, list[float]] = {}
        """Seconds of whole runs, by recipe."""
        for run, summary in zip(runs, summaries, strict=True):
            if summary is not None:
                self._costs.setdefault(run.recipe, []).append(took.get(run.folder, summary["seconds"]))

    def left(self) -> list[int]:
        """Places of the runs that are not finished."""
        return [place for place, summary in enumerate(self.summaries) if summary is None]

    def begun(self, place: int) -> None:
        run = self._runs[place]
        if not holds_run(run.folder):
            self._begun[place] = time.monotonic()
        logged = f", {_log(run)}" if self._at_once > 1 else ""
        self._say(place, f"{run.title}{logged}{self._expected_end()}")

    def ended(self, place: int, summary: dict[str, Any]) -> None:
        self.summaries[place] = summary
        if place in self._begun:
            run, seconds = self._runs[place], time.monotonic() - self._begun[place]
            self._took[run.folder] = seconds
            self._costs.setdefault(run.recipe, []).append(seconds)
        if self._at_once > 1:  # else its own lines have said so
            result = f"test top-1 {summary['test.top1']:.2%}" if summary else "its loss stopped being finite"
            self._say(place, f"{self._runs[place].title}: {result}")

    def _say(self, place: int, text: str) -> None:
        print(f"[{place + 1}/{len(self._runs) + len(self._to_follow)}] {text}", file=sys.stderr, flush=True)

    def _expected_end(self) -> str:
        left = [*(self._runs[place].recipe for place in self.left()), *self._to_follow]
        return _expected_end(self._costs, left, self._at_once)


def _expected_end(costs: Mapping[str, Sequence[float]], left: Sequence[str], at_once: int = 1) -> str:
    """When the remaining recipes will be trained; one that has not run yet is taken for the slowest known."""
    means = {recipe: sum(seconds) / len(seconds) for recipe, seconds in costs.items()}
    if not means:
        return ""
    each = [means.get(recipe, max(means.values())) for recipe in left]
    seconds = max(sum(each) / at_once, *each)  # the last ones have no other beside them
    end = time.strftime("%a %H:%M", time.localtime(time.time() + seconds))
    return f"; about {duration(seconds)} left, until {end}"


def _log(run: PlannedRun) -> Path:
    return run.folder / "train.log"


def _finished_runs(runs: Sequence[PlannedRun]) -> list[dict[str, Any] | None]:
    """The summaries of the runs that are done. ValueError for one with other settings, or of other images."""
    summaries = [_finished(run) for run in runs]
    _check_same_tests([run for run, summary in zip(runs, summaries, strict=True) if summary is not None])
    return summaries


def _finished(run: PlannedRun) -> dict[str, Any] | None:
    """The summary of a run that is done."""
    if not holds_run(run.folder):
        return None
    before, origins = read_run_config(run.folder / "config.yaml")
    changed = forbidden_changes(before, run.config, origins)
    if isinstance(before, ClassificationRun) and before.model.pretrained != run.config.model.pretrained:
        changed["model.pretrained"] = before.model.pretrained, run.config.model.pretrained  # moved ones too
    for key, (old, new) in changed.items():
        raise ValueError(
            f"{key}: {new!r} is not valid: the run in {str(run.folder)!r} was started with {old!r}; "
            "train it as before, or into another folder"
        )
    summary = read_summary(run.folder)
    if summary.get("epochs") != run.config.train.epochs:  # of fewer, where a finished run was continued and stopped
        return None
    assert isinstance(before, ClassificationRun)
    _check_same_data(run, before.data, summary)
    return summary


def _check_same_data(run: PlannedRun, before: DataConfig, summary: Mapping[str, Any]) -> None:
    """ValueError for a finished run of other images. Where the folder is the same, it is not listed again."""
    data, place = run.config.data, f"the run in {str(run.folder)!r} is of"
    folder = "its usual test folder" if before.test_folder is None else repr(before.test_folder)
    rule = f"{place} the images in {folder}; choose another --output_dir"
    check(data.test_folder == before.test_folder, "data.test_folder", data.test_folder, rule)
    if Path(data.root).resolve() == Path(before.root).resolve():
        return
    train, val = open_training(data)
    same = summary.get("data.fingerprint") == f"{fingerprint(train)}+{fingerprint(val)}"
    check(same, "data.root", data.root, f"{place} other images, those of {before.root!r}; choose another --output_dir")


def _check_same_tests(runs: Sequence[PlannedRun]) -> None:
    """ValueError for a run that was tested on other images, where its predictions and the images are there."""
    fingerprints: dict[Any, str] = {}
    for run in runs:
        data, stored = run.config.data, run.folder / "predictions" / "test.npz"
        if not (stored.is_file() and data.name == "imagefolder" and Path(data.root).exists()):
            continue
        place = data.root, data.test_folder, data.test_fraction, data.split_seed
        if place not in fingerprints:
            try:
                fingerprints[place] = fingerprint(open_test(data))
            except (OSError, ValueError):  # the images are not there any more, and a finished run needs none
                continue
        same = Predictions.load(stored).fingerprint in (fingerprints[place], "")  # early versions stored none
        rule = f"the run in {str(run.folder)!r} was tested on other images; choose another --output_dir"
        check(same, "data.root", data.root, rule)


def _train(run: PlannedRun) -> dict[str, Any]:
    """Train or continue one run."""
    return train(run.config, run.folder, resume=holds_run(run.folder), origins=run.origins)


def _train_or_diverge(run: PlannedRun) -> dict[str, Any]:
    """As `_train`, but an empty summary, and a line, where the loss or a gradient stops being finite."""
    try:
        return _train(run)
    except NonFinite as error:
        print(f"{run.title}: left out: {error}", file=sys.stderr, flush=True)
        return {}


def check_same_images(rows: Sequence[dict[str, Any]]) -> None:
    """ValueError where runs of one part and seed trained on other images, or validated on others, or were tested on
    more of them: files can change.
    """
    seen: dict[Any, str] = {}
    for row in rows:
        subset, validation = row["data.fingerprint"].split("+")
        numbers = str(row["test.n_total"])
        for what, found in (((row["fraction"], row["seed"]), subset), ("validation", validation), ("test", numbers)):
            if seen.setdefault(what, found) != found:
                raise ValueError(
                    f"--output_dir: the data of {row['run']!r} are not those of the runs before it; "
                    "remove the runs whose data have changed since, or choose another folder"
                )
