"""Ablation: the plain recipe with each ingredient, and the best recipe without it (or with it), at equal time.

Every variant trains for as many epochs as fit into the same minutes on this machine, measured with its own steps. The
file that is ablated is YAML:

    config: cifar10_vit_small_cpu            # the plain recipe: a file, or a packaged configuration
    settings: {data.root: data/cifar10}      # of every run
    ingredients:                             # each by its settings
      conv stem: {model.stem: conv}
      growing images: {augment.first_image_size: 16, augment.growing_epochs: 2/3}     # 2/3 of the epochs
    best: [conv stem]                        # the ingredients of the best recipe; without this line, all of them
                                             # (`best: []`: each is only added to the plain recipe)

Runs that are finished are not repeated, and one that was stopped continues. Steps are timed with nothing beside them,
with as many threads as a run has; where several are trained at once, all of them take longer than the minutes.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.epochs import as_options, fitting_epochs, nearest_epochs
from vit.config import check
from vit.config.yaml_files import read_yaml
from vit.experiments.data_size_table import accuracy_spread
from vit.experiments.jobs import check_at_once
from vit.experiments.planned_runs import PlannedRun, train_runs
from vit.processor import machine
from vit.runs import write_json
from vit.settings import resolve_run
from vit.tasks.classification import require_classification

CONVENTIONS = {
    "epochs": "as many as fit into the minutes, to the nearest, by the seconds of its own steps, timed alone",
    "seconds": "of training alone: optimizer steps with reading and augmenting, without validation and the test",
    "effect": "accuracy with the ingredient less without it, of runs of one seed: mean over seeds",
    "interval": "95 %, Student's t over the seeds' differences",
}
KEPT = (
    *("test.top1", "val.top1", "epochs", "seconds", "images_seen", "params", "gmacs"),
    *("precision", "device", "seed", "machine", "commit"),
)
"""Keys of a run's summary that are kept; None for one that an earlier version did not write."""
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
        fits = (
            isinstance(ingredients, dict) and ingredients and all(isinstance(own, dict) for own in ingredients.values())
        )
        check(bool(fits), "ingredients", ingredients, "name at least one, each with its settings")
        check(isinstance(content.get("config"), str), "config", content.get("config"), "name the plain recipe")
        best = content.get("best", list(ingredients))
        known = isinstance(best, list) and set(map(str, best)) <= set(ingredients)
        check(known, "best", best, f"it is a list of ingredients: {', '.join(ingredients)}")
        return cls(content["config"], content.get("settings") or {}, ingredients, [str(name) for name in best])

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
    ablation: Ablation, minutes: float, seeds: Sequence[int], folder: Path, say: Callable[[str], None], at_once: int = 1
) -> dict[str, Any]:
    """Train every variant with every seed, and return accuracies and effects.

    `at_once`: how many are trained at the same time. ValueError for a setting that is not valid, and for a `folder`
    with runs of other minutes, or of another number at once.
    """
    check_at_once(at_once)
    variants = ablation.variants()
    epochs = _epochs_of(ablation, minutes, folder, say, at_once)
    runs = []
    for seed in seeds:
        for name, ingredients in variants.items():
            settings = ablation.settings_with(ingredients)
            resolved = resolve_run(ablation.config, as_options(settings, epochs[name]))
            config = replace(require_classification(resolved.config, "config", ablation.config), seed=seed)
            place = folder / re.sub(r"\W+", "_", name) / f"seed{seed}"
            runs.append(PlannedRun(name, f"{name}, seed {seed}", config, resolved.origins, place))
    rows: list[dict[str, Any]] = [
        {"variant": run.recipe, **{name: summary.get(name) for name in KEPT}}
        for run, summary in zip(runs, train_runs(runs, at_once), strict=True)
    ]
    return {
        "config": ablation.config,
        "settings": dict(ablation.settings),
        "ingredients": {name: dict(own) for name, own in ablation.ingredients.items()},
        "best": list(ablation.best),
        "minutes": minutes,
        "at_once": at_once,
        "machine": machine(rows[0]["device"]),
        "runs": rows,
        "effects": list(effects(ablation, rows)),
        "conventions": CONVENTIONS,
    }


def _epochs_of(
    ablation: Ablation, minutes: float, folder: Path, say: Callable[[str], None], at_once: int
) -> dict[str, int]:
    """Measured once, in turns, so that an ablation that is continued has the same epochs."""
    file = folder / "epochs.json"
    stored: dict[str, Any] = {"minutes": minutes, "at_once": at_once, "seconds": {}}
    if file.is_file():
        stored = {"at_once": 1, **json.loads(file.read_text())}
    for option, value in (("minutes", minutes), ("at_once", at_once)):
        check(stored[option] == value, f"--{option}", value, f"the runs in {folder} have {stored[option]:g}")
    folder.mkdir(parents=True, exist_ok=True)
    variants, timing = ablation.variants(), folder / "timing"
    with _share_of_threads(at_once):
        for turn in range(_TURNS):
            for name, ingredients in variants.items():
                if len(stored["seconds"].get(name, [])) > turn:
                    continue
                _, seconds = fitting_epochs(ablation.config, ablation.settings_with(ingredients), minutes, timing)
                stored["seconds"].setdefault(name, []).append(seconds)
                say(f"{name}: {seconds:.1f} s an epoch")
                write_json(file, stored)
    return {name: nearest_epochs(minutes, min(stored["seconds"][name])) for name in variants}


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
    """The effect of each ingredient on the plain recipe and on the best one, paired by seed."""
    top1 = {(row["variant"], row["seed"]): row["test.top1"] for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    for name, having, lacking in ablation.pairs():
        spread = accuracy_spread({seed: top1[having, seed] - top1[lacking, seed] for seed in seeds})
        variant = lacking if having == "best" else having
        found = {"ingredient": name, "variant": variant, "effect": spread["mean"]}
        yield found if len(seeds) == 1 else found | {"interval": [spread["low"], spread["high"]]}


def table(result: Mapping[str, Any]) -> str:
    """Markdown: a row for each variant, with its mean accuracy and what its ingredient brings."""
    by_variant: dict[str, list[Mapping[str, Any]]] = {}
    for row in result["runs"]:
        by_variant.setdefault(row["variant"], []).append(row)
    told = {effect["variant"]: effect for effect in result["effects"]}
    lines = ["| variant | epochs | test top-1 | the ingredient brings |", "| --- | --- | --- | --- |"]
    for name, rows in by_variant.items():
        values = [100 * row["test.top1"] for row in rows]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        cells = (name, str(rows[0]["epochs"]), f"{statistics.fmean(values):.2f}{spread} %", _brings(told.get(name)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _brings(effect: Mapping[str, Any] | None) -> str:
    if effect is None:
        return ""
    points = f"{100 * effect['effect']:+.2f} points"
    if "interval" not in effect:
        return points
    low, high = effect["interval"]
    return f"{points} ({100 * low:+.1f} to {100 * high:+.1f})"
