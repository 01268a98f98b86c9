"""Accuracy against the size of the training set: recipes trained from scratch on nested, class-balanced subsets.

Each run can be repeated by `vit train` alone with the `config.yaml` of its folder:

    FOLDER/RECIPE/FRACTION/seed-N/            a run folder
    FOLDER/RECIPE/FRACTION/lr-RATE/seed-N/    one with another learning rate than the recipe's
    FOLDER/data_size.json .csv .md .png

A run of a fraction takes the steps, warm-up and evaluations of the full run (`data.epoch_length: whole_set`), so that
less data is not also less training. Which learning rate suits may depend on the number of images: each recipe and
fraction can have the one of several that was best on validation images with the first seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from vit.config import OptimConfig, check
from vit.experiments.planned_runs import PlannedRun, check_folders, check_same_images, check_shared, train_runs
from vit.settings import COMMAND_LINE, ResolvedRun
from vit.tasks.classification import require_classification
from vit.tasks.task import NonFinite

_CHOSEN = ("data.fraction", "data.subset_seed", "data.epoch_length", "seed")
"""Settings that the comparison chooses for a run, besides the learning rate."""


def plan_runs(
    recipes: Mapping[str, ResolvedRun],
    fractions: Sequence[float],
    num_seeds: int,
    folder: Path,
    lr_factors: Sequence[float] = (1.0,),
) -> list[PlannedRun]:
    """Every run, seed by seed, so that the curves of the first seed stand before the second begins.

    Seeds count up from the recipes' `seed`; a seed draws the subset, the first weights, the order and the augmentation.
    Each run is planned once for every one of `lr_factors`, which multiply its recipe's own rate, at the peak and at the
    end. ValueError for recipes that differ in what they must share, naming the setting, and for invalid fractions and
    factors.
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
    optims = {name: _with_rates(name, config.optim, lr_factors) for name, config in configs.items()}
    seeds = range(configs[first].seed, configs[first].seed + num_seeds)
    runs = []
    for seed, fraction, (name, config) in product(seeds, sorted(fractions), configs.items()):
        data = config.data
        if fraction < 1:
            data = replace(data, fraction=fraction, subset_seed=seed, epoch_length="whole_set")
        title, place = f"{name}, {100 * fraction:.4g} % of the data", folder / name / str(float(fraction))
        for optim in optims[name]:
            is_own = optim.lr == config.optim.lr
            chosen = _CHOSEN if is_own else (*_CHOSEN, "optim.lr", "optim.min_lr")
            run = PlannedRun(
                recipe=name,
                title=f"{title}{f', rate {optim.lr:g}' if len(lr_factors) > 1 else ''}, seed {seed}",
                config=replace(config, seed=seed, data=data, optim=optim),
                origins=recipes[name].origins | dict.fromkeys(chosen, COMMAND_LINE),
                folder=(place if is_own else place / f"lr-{optim.lr:g}") / f"seed-{seed}",
            )
            runs.append(run)
    return runs


def _with_rates(recipe: str, optim: OptimConfig, factors: Sequence[float]) -> list[OptimConfig]:
    """The recipe's settings with each multiple of its rate, the smallest first."""
    found: dict[float, OptimConfig] = {}
    for factor in sorted(factors):
        check(0 < factor < math.inf, "--lr_factors", factor, "each must be a finite number above 0")
        own = math.isclose(factor, 1)
        rate, last = (optim.lr, optim.min_lr) if own else (_rounded(factor * each) for each in (optim.lr, optim.min_lr))
        rule = f"two of them give {recipe} a rate of {rate:g}"
        check(rate not in found, "--lr_factors", list(factors), rule)
        try:
            found[rate] = replace(optim, lr=rate, min_lr=last)
        except ValueError as error:
            raise ValueError(f"--lr_factors: {factor:g} is not valid for {recipe}: {error}") from None
    return list(found.values())


def _rounded(rate: float) -> float:
    """To as many digits as the name of a folder has: 0.0003, not 0.00030000000000000003."""
    return float(f"{rate:g}")


def train_all(runs: Sequence[PlannedRun], at_once: int = 1) -> list[dict[str, Any]]:
    """Train what is not finished yet, and return a row for every run that was trained.

    Where runs differ in the learning rate alone, those of the first seed are trained with every rate, and later ones
    with the one that was best on validation images for their recipe and fraction; a rate with which the loss stops
    being finite is none. Errors as in `train_runs`, before anything is trained, and `NonFinite` where no rate is left.
    """
    check_folders(runs)
    first = [run for run in runs if run.config.seed == runs[0].config.seed]
    best, diverged = {_cell(run): run.config.optim.lr for run in first}, list[PlannedRun]()
    took: dict[Path, float] = {}
    if len(first) > len(best):  # several rates
        later = [run for run in runs if run.config.seed != runs[0].config.seed]
        to_follow = [run.recipe for run in later if run.config.optim.lr == best[_cell(run)]]  # as many with any rate
        summaries = train_runs(first, at_once, to_follow, may_diverge=True, took=took)
        best = _best_rates(first, summaries)
        diverged = [run for run, summary in zip(first, summaries, strict=True) if not summary]
        chosen_later = [run for run in later if run.config.optim.lr == best[_cell(run)]]
        runs = [*(run for run in first if run not in diverged), *chosen_later]
    rows = [
        _row(run, summary, is_chosen=run.config.optim.lr == best[_cell(run)])
        for run, summary in zip(runs, train_runs(runs, at_once, took=took), strict=True)
    ]
    check_same_images(rows)
    return [*rows, *(_row(run, {}, is_chosen=False) for run in diverged)]


def _cell(run: PlannedRun) -> tuple[str, float]:
    return run.recipe, run.fraction


def _best_rates(runs: Sequence[PlannedRun], summaries: Sequence[Mapping[str, Any]]) -> dict[tuple[str, float], float]:
    """The learning rate with the highest validation accuracy for each recipe and fraction, of equals the smallest."""
    best = dict[tuple[str, float], tuple[float, float]]()
    for run, summary in zip(runs, summaries, strict=True):
        if summary and (_cell(run) not in best or summary["val.top1"] > best[_cell(run)][0]):
            best[_cell(run)] = summary["val.top1"], run.config.optim.lr
    for run in runs:
        if _cell(run) not in best:
            raise NonFinite(
                f"--lr_factors: {run.recipe} has no rate with which the loss stays finite on {run.fraction:g} of the "
                "data; add smaller factors"
            )
    return {cell: rate for cell, (_, rate) in best.items()}


def _row(run: PlannedRun, summary: Mapping[str, Any], *, is_chosen: bool) -> dict[str, Any]:
    """A run's line; without a summary, as its loss was not finite, its numbers are None."""
    kept = (
        *("test.top1", "val.top1", "last.test.top1", "best.step", "steps", "images_seen", "seconds"),
        *("test.n_total", "params", "gmacs", "data.fingerprint"),
    )
    return {
        "recipe": run.recipe,
        "fraction": run.fraction,
        "seed": run.config.seed,
        "lr": run.config.optim.lr,
        "chosen": is_chosen,
        "num_images": summary["train.n_total"] if summary else None,
        **{key: summary[key] if summary else None for key in kept},
        **{key: summary.get(key) for key in ("precision", "device", "machine", "commit")},  # None: an early version
        "run": str(run.folder),
    }
