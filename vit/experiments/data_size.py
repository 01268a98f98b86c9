"""Accuracy against the size of the training set: recipes trained from scratch on nested, class-balanced subsets.

Each run can be repeated by `vit train` alone with the `config.yaml` of its folder:

    FOLDER/RECIPE/FRACTION/seed-N/    a run folder
    FOLDER/data_size.json .csv .md .png

A run of a fraction takes the steps, warm-up and evaluations of the full run (`data.epoch_length: whole_set`), so that
less data is not also less training.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vit.config import check
from vit.runs import holds_run
from vit.settings import COMMAND_LINE, ResolvedRun, flat_settings, read_run_config
from vit.tasks.classification import require_classification
from vit.tasks.classification.config import ClassificationRun
from vit.training.checkpoints import forbidden_changes
from vit.training.interruption import Stopped
from vit.training.loop import train

_SHARED = (
    *("data.name", "data.root", "data.test_folder", "data.val_fraction", "data.split_seed"),
    *("data.fake_images", "data.fake_classes", "train.epochs", "seed"),
)
"""Settings that recipes must share to be tested on the same images after as many images seen."""
_CHOSEN = ("data.fraction", "data.subset_seed", "data.epoch_length", "seed")
"""Settings that the comparison chooses for a run."""


@dataclass(frozen=True)
class PlannedRun:
    """One point: a recipe on a part of the data with a seed of its own."""

    recipe: str
    fraction: float
    config: ClassificationRun
    origins: dict[str, str]
    folder: Path

    @property
    def title(self) -> str:
        return f"{self.recipe}, {100 * self.fraction:.4g} % of the data, seed {self.config.seed}"


def plan_runs(
    recipes: Mapping[str, ResolvedRun], fractions: Sequence[float], num_seeds: int, folder: Path
) -> list[PlannedRun]:
    """Every run, seed by seed, so that the curves of the first seed stand before the second begins.

    Seeds count up from the recipes' `seed`; a seed draws the subset, the first weights, the order and the augmentation.
    ValueError for recipes that differ in what they must share, naming the setting, and for invalid fractions.
    """
    configs = {name: require_classification(resolved.config, "--train", name) for name, resolved in recipes.items()}
    first, *others = configs
    ours = flat_settings(configs[first])
    for config in configs.values():
        rule = "the comparison chooses the parts of the data; say them with --fractions"
        check(config.data.fraction == 1, "data.fraction", config.data.fraction, rule)
        rule = "the comparison gives every run a folder of its own; say where with --output_dir"
        check(config.output_dir is None, "output_dir", config.output_dir, rule)
    for name in others:
        theirs = flat_settings(configs[name])
        for key in _SHARED:
            rule = f"{first} has {ours[key]!r}; the comparison is of the same images and as many of them seen"
            check(theirs[key] == ours[key], f"{name}: {key}", theirs[key], rule)
    check(num_seeds >= 1, "--seeds", num_seeds, "it must be at least 1")
    for fraction in fractions:
        check(0 < fraction <= 1, "--fractions", fraction, "each must be in (0, 1]")
    rule = "a fraction is there twice"
    check(len(set(fractions)) == len(fractions), "--fractions", list(fractions), rule)
    runs = []
    for seed in range(configs[first].seed, configs[first].seed + num_seeds):
        for fraction in sorted(fractions):
            for name, config in configs.items():
                data = config.data
                if fraction < 1:
                    data = replace(data, fraction=fraction, subset_seed=seed, epoch_length="whole_set")
                run = PlannedRun(
                    recipe=name,
                    fraction=fraction,
                    config=replace(config, seed=seed, data=data),
                    origins=recipes[name].origins | dict.fromkeys(_CHOSEN, COMMAND_LINE),
                    folder=folder / name / str(float(fraction)) / f"seed-{seed}",
                )
                runs.append(run)
    return runs


# ------------------------------------------------------------------ training


def train_all(runs: Sequence[PlannedRun]) -> list[dict[str, Any]]:
    """Train what is not finished yet, and return a row for every run.

    A finished run is recognised by its summary and its settings; one that was stopped continues. ValueError, before
    anything is trained, for a folder that holds a run with other settings; `Stopped` after a signal.
    """
    summaries = [_finished(run) for run in runs]
    costs: dict[str, list[float]] = {}
    for run, summary in zip(runs, summaries, strict=True):
        if summary is not None:
            costs.setdefault(run.recipe, []).append(summary["seconds"])
    for place, run in enumerate(runs):
        if summaries[place] is None:
            left = [other.recipe for other, done in zip(runs, summaries, strict=True) if done is None]
            print(f"[{place + 1}/{len(runs)}] {run.title}{_expected_end(costs, left)}", file=sys.stderr, flush=True)
            summaries[place] = _train(run, costs)
    rows = [_row(run, summary) for run, summary in zip(runs, summaries, strict=True) if summary is not None]
    _check_same_images(rows)
    return rows


def _finished(run: PlannedRun) -> dict[str, Any] | None:
    """The summary of a run that is done."""
    if not holds_run(run.folder):
        return None
    before, _ = read_run_config(run.folder / "config.yaml")
    for key, (old, new) in forbidden_changes(before, run.config).items():
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


def _row(run: PlannedRun, summary: dict[str, Any]) -> dict[str, Any]:
    kept = ("test.top1", "val.top1", "last.test.top1", "best.step", "steps", "images_seen", "seconds")
    return {
        "recipe": run.recipe,
        "fraction": run.fraction,
        "seed": run.config.seed,
        "num_images": summary["train.n_total"],
        **{key: summary[key] for key in kept},
        "test.n_total": summary["test.n_total"],
        "params": summary["params"],
        "gmacs": summary["gmacs"],
        "data.fingerprint": summary["data.fingerprint"],
        "run": str(run.folder),
    }


def _check_same_images(rows: Sequence[dict[str, Any]]) -> None:
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
