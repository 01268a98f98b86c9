"""Ablation: the plain recipe with each ingredient, and the best recipe without it (or with it), at equal time.

Every variant trains for as many epochs as fit into the same minutes, at least two, measured with its own steps on the
machine where the ablation begins. The file that is ablated is YAML:

    config: cifar10_vit_small_cpu            # the plain recipe: a file, or a packaged configuration
    settings: {data.root: data/cifar10}      # of every run
    ingredients:                             # each by its settings
      conv stem: {model.stem: conv}
      growing images: {augment.first_image_size: 16, augment.growing_epochs: 2/3}     # 2/3 of the epochs
    best: [conv stem]                        # the ingredients of the best recipe; without this line, all of them
                                             # (`best: []`: each is only added to the plain recipe)

The result's file is written after every run, and continued from: what stands in it is not repeated, on whatever machine
it was measured, and a run that was stopped continues. Steps are timed with nothing beside them, with as many threads as
a run has; where several are trained at once, all of them take longer than the minutes. A run whose loss stops being
finite is not repeated either: it has a row without an accuracy.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.epochs import (
    FEWEST_EPOCHS,
    TRIED_EPOCHS,
    as_options,
    fitting_epochs,
    nearest_epochs,
    said_of_fewest,
)
from vit.config import check
from vit.config.yaml_files import read_yaml
from vit.engine import make_accelerator
from vit.evaluation.statistics import accuracy_spread
from vit.experiments.jobs import check_at_once
from vit.experiments.planned_runs import PlannedRun, train_runs
from vit.processor import machine
from vit.runs import write_json
from vit.settings import flat_settings, resolve_run
from vit.tasks.classification import require_classification

CONVENTIONS = {
    "epochs": "as many as fit into the minutes on the machine `timed_on`, to the nearest, by the seconds of its own "
    f"steps, timed alone, in the fastest of three turns; at least {FEWEST_EPOCHS}, whatever they take",
    "seconds": "of training alone: optimizer steps with reading and augmenting, without validation and the test",
    "effect": "accuracy with the ingredient less without it, of runs of one seed: mean over seeds; there is none where "
    "a run of the two has diverged",
    "interval": "95 %, Student's t over the seeds' differences",
    "diverged": "true of a run whose loss or gradient stopped being finite, which has no accuracy",
}
KEPT = (
    *("test.top1", "val.top1", "epochs", "seconds", "images_seen", "params", "gmacs"),
    *("precision", "device", "seed", "machine", "commit"),
)
"""Keys of a run's summary that are kept; None for one that an earlier version did not write."""
_FREE = ("seed", "output_dir", "train.epochs")
"""Settings that are an ablation's own choice."""
_TURNS = 3
"""In which every variant's steps are timed; the fastest counts, as other work only slows them down."""


@dataclass(frozen=True)
class Ablation:
    """A recipe's ingredients, as the file names them."""

    config: str
    settings: Mapping[str, Any]
    ingredients: Mapping[str, Mapping[str, Any]]
    best: Sequence[str]
    """The ingredients of the best recipe."""

    @classmethod
    def read(cls, path: Path) -> Ablation:
        """ValueError for a file that is not as the module says."""
        content = read_yaml(path, "FILE")
        unknown = sorted(set(content) - {"config", "settings", "ingredients", "best"})
        check(not unknown, "FILE", str(path), f"it has no section {unknown[:1]}; config, settings, ingredients, best")
        ingredients = content.get("ingredients") or {}
        fits = isinstance(ingredients, dict) and all(isinstance(own, dict) for own in ingredients.values())
        fits = fits and bool(ingredients) and all(isinstance(name, str) for name in ingredients)
        check(fits, "ingredients", ingredients, "name at least one, each with its settings")
        settings = content.get("settings") or {}
        check(isinstance(settings, dict), "settings", settings, "they are names with their values")
        check(isinstance(content.get("config"), str), "config", content.get("config"), "name the plain recipe")
        best = content.get("best", list(ingredients))
        known = isinstance(best, list) and set(map(str, best)) <= set(ingredients)
        check(known, "best", best, f"it is a list of ingredients: {', '.join(ingredients)}")
        ablation = cls(content["config"], settings, ingredients, [str(name) for name in best])
        folders: dict[str, str] = {}
        for name in ablation.variants():
            other = folders.setdefault(_folder_name(name), name)
            rule = f"its runs and those of {other!r} would have one folder; name them by other words"
            check(other == name, "ingredients", name, rule)
        return ablation

    def variants(self) -> dict[str, tuple[str, ...]]:
        """Name of a variant → its ingredients: none, one of them; the best ones, and those but one or with another."""
        found: dict[str, tuple[str, ...]] = {"plain": (), **{f"plain + {name}": (name,) for name in self.ingredients}}
        if not self.best:
            return found
        found |= {"best": tuple(self.best)}
        return found | {self._beside_best(name): self._ingredients_beside_best(name) for name in self.ingredients}

    def pairs(self) -> Iterator[tuple[str, str, str]]:
        """(ingredient, variant that has it, variant that lacks it and is otherwise the same)."""
        for name in self.ingredients:
            yield name, f"plain + {name}", "plain"
            if not self.best:
                continue
            beside = self._beside_best(name)
            yield (name, "best", beside) if name in self.best else (name, beside, "best")

    def _beside_best(self, name: str) -> str:
        return f"best {'-' if name in self.best else '+'} {name}"

    def _ingredients_beside_best(self, name: str) -> tuple[str, ...]:
        if name in self.best:
            return tuple(other for other in self.best if other != name)
        return (*self.best, name)

    def settings_with(self, ingredients: Sequence[str]) -> dict[str, Any]:
        """The settings of a variant."""
        chosen = dict(self.settings)
        for name in ingredients:
            chosen |= self.ingredients[name]
        return chosen


def ablate(
    ablation: Ablation,
    minutes: float,
    seeds: Sequence[int],
    folder: Path,
    file: Path,
    say: Callable[[str], None],
    at_once: int = 1,
) -> dict[str, Any]:
    """Train every variant with every seed, and return accuracies and effects, which stand in `file` after every run.

    What `file` holds already is neither timed nor trained again, wherever that was done: an ablation is continued on
    another machine from its file alone. `at_once`: how many are trained at the same time. One whose loss stops being
    finite has no accuracy and is left out of the effects. ValueError for a setting that
    is not valid, for a `file` of something else or of another ablation, and for a `folder` with runs that no `file`
    tells of.
    """
    check_at_once(at_once)
    check(0 < minutes < math.inf, "--minutes", minutes, "it must be above 0, and finite")
    check(min(seeds) >= 0, "--seeds", min(seeds), "it must be at least 0")
    for ingredients in ablation.variants().values():  # a wrong setting is said before any time is spent
        resolved = resolve_run(ablation.config, as_options(ablation.settings_with(ingredients), TRIED_EPOCHS), "FILE")
        require_classification(resolved.config, "config", ablation.config)
    result = _begun(ablation, minutes, at_once, file)
    begun = next(folder.glob("*/seed*/config.yaml"), None)
    rule = "it holds runs of an ablation that --output does not tell of; name its file, or another folder"
    check(file.is_file() or begun is None, "--folder", str(folder), rule)
    _time_variants(ablation, result, folder, file, say, at_once)
    variants = ablation.variants()

    def keep(run: PlannedRun, summary: Mapping[str, Any]) -> None:
        row = {"variant": run.recipe, **{name: summary.get(name) for name in KEPT}}
        if not summary:
            row |= {"seed": run.config.seed, "epochs": run.config.train.epochs, "diverged": True}
        before = _begun(ablation, minutes, at_once, file)["runs"]  # another process may have added its own
        rows = {(each["seed"], each["variant"]): each for each in (*before, *result["runs"], row)}
        order = sorted(rows, key=lambda key: (key[0], list(variants).index(key[1])))
        result["runs"] = [rows[key] for key in order]
        result["effects"] = list(effects(ablation, result["runs"]))
        write_json(file, result)

    train_runs(_missing_runs(ablation, result, seeds, folder), at_once, may_diverge=True, finished=keep)
    return result


def _missing_runs(
    ablation: Ablation, result: Mapping[str, Any], seeds: Sequence[int], folder: Path
) -> list[PlannedRun]:
    """The runs that the result does not hold, seed by seed."""
    known = {(row["seed"], row["variant"]) for row in result["runs"]}
    runs = []
    for seed, (name, ingredients) in product(sorted(set(seeds)), ablation.variants().items()):
        if (seed, name) in known:
            continue
        epochs = nearest_epochs(result["minutes"], min(result["seconds_an_epoch"][name]))
        resolved = resolve_run(ablation.config, as_options(ablation.settings_with(ingredients), epochs), "FILE")
        config = replace(require_classification(resolved.config, "config", ablation.config), seed=seed)
        place = folder / _folder_name(name) / f"seed{seed}"
        runs.append(PlannedRun(name, f"{name}, seed {seed}", config, resolved.origins, place))
    return runs


def _folder_name(variant: str) -> str:
    return re.sub(r"\W+", "_", variant)


def _begun(ablation: Ablation, minutes: float, at_once: int, file: Path) -> dict[str, Any]:
    """The result so far: that of `file`, if there is one."""
    recipe = resolve_run(ablation.config, as_options(ablation.settings, TRIED_EPOCHS), "FILE").config
    asked: dict[str, Any] = {
        "config": ablation.config,
        "settings": dict(ablation.settings),
        "ingredients": {name: dict(own) for name, own in ablation.ingredients.items()},
        "best": list(ablation.best),
        "minutes": minutes,
        "at_once": at_once,
        "plain": {key: value for key, value in flat_settings(recipe).items() if key not in _FREE},
    }
    empty = {**asked, "seconds_an_epoch": {}, "timed_on": None, "runs": [], "effects": [], "conventions": CONVENTIONS}
    if not file.is_file():
        return empty
    stored = _read_result(file, empty)
    # a setting that came after the file changes nothing at its default
    defaults = flat_settings(type(recipe)(task=recipe.task))
    ours, theirs = (
        {**{key: told[key] for key in asked if key != "plain"}, **defaults, **told["plain"]} for told in (asked, stored)
    )
    for name in {**ours, **theirs}:
        option = f"--{name}" if name in ("minutes", "at_once") else name
        rule = f"the ablation in {file} has {theirs.get(name)!r}"
        check(ours.get(name) == theirs.get(name), option, ours.get(name), rule)
    unknown = sorted({row["variant"] for row in stored["runs"]} - ablation.variants().keys())
    check(not unknown, "--output", str(file), f"it has runs of variants that the ablation lacks: {unknown[:1]}")
    return stored


def _read_result(file: Path, empty: Mapping[str, Any]) -> dict[str, Any]:
    """ValueError for a file that has not what `empty` has, of the same types, or rows and seconds of another kind."""
    try:
        stored = json.loads(file.read_text())
        fits = all(isinstance(stored[key], type(value)) for key, value in empty.items() if value is not None)
        fits &= all(isinstance(row["test.top1"], float) or row.get("diverged") is True for row in stored["runs"])
        fits &= all(row["seed"] >= 0 for row in stored["runs"])
        fits &= all(row["variant"] and set(KEPT) <= row.keys() for row in stored["runs"])
        fits &= all(min(seconds) > 0 for seconds in stored["seconds_an_epoch"].values())
        fits &= "timed_on" in stored
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        fits = False
    check(fits, "--output", str(file), "it is no result of an ablation; name another file")
    return dict(stored)


def _time_variants(
    ablation: Ablation, result: dict[str, Any], folder: Path, file: Path, say: Callable[[str], None], at_once: int
) -> None:
    """Seconds an epoch of every variant, in turns, so that an ablation that is continued has the same epochs.

    All on one machine: times that another has begun are taken anew.
    """
    variants = ablation.variants()
    if all(len(result["seconds_an_epoch"].get(name, [])) >= _TURNS for name in variants):
        return
    with _share_of_threads(at_once):
        here = machine(_device_type(ablation))
        if result["timed_on"] != here:
            result["timed_on"], result["seconds_an_epoch"] = here, {}
        seconds = result["seconds_an_epoch"]
        for turn, name in product(range(_TURNS), variants):
            if len(seconds.get(name, [])) > turn:
                continue
            settings = ablation.settings_with(variants[name])
            _, found = fitting_epochs(ablation.config, settings, result["minutes"], folder / "timing")
            seconds.setdefault(name, []).append(found)
            say(f"{name}: {found:.1f} s an epoch{said_of_fewest(result['minutes'], found)}")
            write_json(file, result)


def _device_type(ablation: Ablation) -> str:
    """Where the plain recipe is trained."""
    config = resolve_run(ablation.config, as_options(ablation.settings, TRIED_EPOCHS), "FILE").config
    return str(make_accelerator(config.device, config.train.precision).device.type)


@contextmanager
def _share_of_threads(at_once: int) -> Iterator[None]:
    """Within the block, as many threads as each of so many runs has."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // at_once))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def effects(ablation: Ablation, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The effect of each ingredient on the plain recipe and on the best one, paired by seed.

    Of the seeds with which every variant is trained: none while there is no such seed, nor for a pair of which a run
    has diverged.
    """
    top1 = {(row["variant"], row["seed"]): row["test.top1"] for row in rows}
    seeds = whole_seeds(ablation, rows)
    if not seeds:
        return
    for name, having, lacking in ablation.pairs():
        if any(top1[variant, seed] is None for variant in (having, lacking) for seed in seeds):
            continue
        spread = accuracy_spread({seed: top1[having, seed] - top1[lacking, seed] for seed in seeds})
        variant = lacking if having == "best" else having
        found = {"ingredient": name, "variant": variant, "seeds": seeds, "effect": spread["mean"]}
        yield found if len(seeds) == 1 else found | {"interval": [spread["low"], spread["high"]]}


def whole_seeds(ablation: Ablation, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The seeds with which every variant is trained."""
    trained: dict[int, set[str]] = {}
    for row in rows:
        trained.setdefault(row["seed"], set()).add(row["variant"])
    return sorted(seed for seed, names in trained.items() if names >= set(ablation.variants()))
