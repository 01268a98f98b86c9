"""Accuracy against the size of the training set: recipes trained from scratch on nested, class-balanced subsets.

Each run can be repeated by `vit train` alone with the `config.yaml` of its folder:

    FOLDER/RECIPE/FRACTION/seed-N/    a run folder
    FOLDER/data_size.json .csv .md .png

A run of a fraction takes the steps, warm-up and evaluations of the full run (`data.epoch_length: whole_set`), so that
less data is not also less training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vit.config import check
from vit.experiments.planned_runs import PlannedRun, check_same_images, check_shared, train_runs
from vit.settings import COMMAND_LINE, ResolvedRun
from vit.tasks.classification import require_classification

_CHOSEN = ("data.fraction", "data.subset_seed", "data.epoch_length", "seed")
"""Settings that the comparison chooses for a run."""


def plan_runs(
    recipes: Mapping[str, ResolvedRun], fractions: Sequence[float], num_seeds: int, folder: Path
) -> list[PlannedRun]:
    """Every run, seed by seed, so that the curves of the first seed stand before the second begins.

    Seeds count up from the recipes' `seed`; a seed draws the subset, the first weights, the order and the augmentation.
    ValueError for recipes that differ in what they must share, naming the setting, and for invalid fractions.
    """
    configs = {name: require_classification(resolved.config, "--train", name) for name, resolved in recipes.items()}
    first = next(iter(configs))
    for config in configs.values():
        rule = "the comparison chooses the parts of the data; say them with --fractions"
        check(config.data.fraction == 1, "data.fraction", config.data.fraction, rule)
        rule = "the comparison gives every run a folder of its own; say where with --output_dir"
        check(config.output_dir is None, "output_dir", config.output_dir, rule)
    check_shared(configs)
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
                    title=f"{name}, {100 * fraction:.4g} % of the data, seed {seed}",
                    config=replace(config, seed=seed, data=data),
                    origins=recipes[name].origins | dict.fromkeys(_CHOSEN, COMMAND_LINE),
                    folder=folder / name / str(float(fraction)) / f"seed-{seed}",
                )
                runs.append(run)
    return runs


def train_all(runs: Sequence[PlannedRun], at_once: int = 1) -> list[dict[str, Any]]:
    """Train what is not finished yet, and return a row for every run. Errors as in `train_runs`."""
    rows = [_row(run, summary) for run, summary in zip(runs, train_runs(runs, at_once), strict=True)]
    check_same_images(rows)
    return rows


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
        **{key: summary.get(key) for key in ("precision", "device", "machine", "commit")},  # None: an early version
        "run": str(run.folder),
    }
