"""Ablation: the plain recipe with each of its ingredients, and the whole recipe without it, at equal time.

Every variant trains for as many epochs as fit into the same minutes on this machine, measured with its own steps. The
file that is ablated is YAML:

    config: cifar10_vit_small_cpu            # the plain recipe: a file, or a packaged configuration
    settings: {data.root: data/cifar10}      # of every run
    ingredients:                             # each by its settings
      conv stem: {model.stem: conv}
      growing images: {augment.first_image_size: 16, augment.growing_epochs: 2/3}     # 2/3 of the epochs

Runs that are finished are not repeated, and one that was stopped continues.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.epochs import as_options, fitting_epochs
from vit.config import check
from vit.config.yaml_files import read_yaml
from vit.experiments.data_size_table import accuracy_spread
from vit.experiments.planned_runs import PlannedRun, train_runs
from vit.processor import machine
from vit.runs import write_json
from vit.settings import resolve_run
from vit.tasks.classification import require_classification

CONVENTIONS = {
    "epochs": "as many as fit into the minutes, by the seconds of this variant's own steps, measured before",
    "seconds": "of training alone: optimizer steps with reading and augmenting, without validation and the test",
    "effect": "accuracy with the ingredient less without it, of runs of one seed: mean over seeds",
    "interval": "95 %, Student's t over the seeds' differences",
}
KEPT = ("test.top1", "val.top1", "epochs", "seconds", "images_seen", "params", "gmacs", "precision", "device", "seed")
"""Of a run's summary."""


@dataclass(frozen=True)
class Ablation:
    """A recipe's ingredients, as the file names them."""

    config: str
    settings: Mapping[str, Any]
    ingredients: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Ablation:
        """ValueError for a file that is not as the module says."""
        content = read_yaml(path, "FILE")
        unknown = sorted(set(content) - {"config", "settings", "ingredients"})
        check(not unknown, "FILE", str(path), f"it has no section {unknown[:1]}; config, settings and ingredients")
        ingredients = content.get("ingredients") or {}
        fits = (
            isinstance(ingredients, dict) and ingredients and all(isinstance(own, dict) for own in ingredients.values())
        )
        check(bool(fits), "ingredients", ingredients, "name at least one, each with its settings")
        check(isinstance(content.get("config"), str), "config", content.get("config"), "name the plain recipe")
        return cls(content["config"], content.get("settings") or {}, ingredients)

    def variants(self) -> dict[str, tuple[str, ...]]:
        """Name of a variant → its ingredients: none, one of them, all but one, all."""
        names = tuple(self.ingredients)
        found = {"plain": (), **{f"plain + {name}": (name,) for name in names}}
        found |= {f"all - {name}": tuple(other for other in names if other != name) for name in names}
        return found | {"all": names}

    def settings_with(self, ingredients: Sequence[str]) -> dict[str, Any]:
        """The settings of a variant."""
        chosen = dict(self.settings)
        for name in ingredients:
            chosen |= self.ingredients[name]
        return chosen


def ablate(
    ablation: Ablation, minutes: float, seeds: Sequence[int], folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Train every variant with every seed, and return accuracies and effects.

    ValueError for a setting that is not valid, and for a `folder` with runs of other minutes.
    """
    variants = ablation.variants()
    epochs = _epochs_of(ablation, minutes, folder, say)
    runs = []
    for seed in seeds:
        for name, ingredients in variants.items():
            settings = ablation.settings_with(ingredients)
            resolved = resolve_run(ablation.config, as_options(settings, epochs[name]))
            config = replace(require_classification(resolved.config, "config", ablation.config), seed=seed)
            place = folder / re.sub(r"\W+", "_", name) / f"seed{seed}"
            runs.append(PlannedRun(name, f"{name}, seed {seed}", config, resolved.origins, place))
    rows = [
        {"variant": run.recipe, **{name: summary[name] for name in KEPT}}
        for run, summary in zip(runs, train_runs(runs), strict=True)
    ]
    return {
        "config": ablation.config,
        "settings": dict(ablation.settings),
        "ingredients": {name: dict(own) for name, own in ablation.ingredients.items()},
        "minutes": minutes,
        "machine": machine(rows[0]["device"]),
        "runs": rows,
        "effects": list(effects(ablation, rows)),
        "conventions": CONVENTIONS,
    }


def _epochs_of(ablation: Ablation, minutes: float, folder: Path, say: Callable[[str], None]) -> dict[str, int]:
    """Measured once, so that an ablation that is continued has the same epochs."""
    file = folder / "epochs.json"
    stored: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {"minutes": minutes, "epochs": {}}
    check(stored["minutes"] == minutes, "--minutes", minutes, f"the runs in {folder} have {stored['minutes']:g} each")
    for name, ingredients in ablation.variants().items():
        if name not in stored["epochs"]:
            settings = ablation.settings_with(ingredients)
            stored["epochs"][name], seconds = fitting_epochs(ablation.config, settings, minutes, folder / "timing")
            say(f"{name}: {seconds:.1f} s an epoch, {stored['epochs'][name]} epochs")
            folder.mkdir(parents=True, exist_ok=True)
            write_json(file, stored)
    return dict(stored["epochs"])


def effects(ablation: Ablation, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The effect of each ingredient on the plain recipe and on the whole one, paired by seed."""
    top1 = {(row["variant"], row["seed"]): row["test.top1"] for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    for name in ablation.ingredients:
        added, removed = f"plain + {name}", f"all - {name}"
        for variant, having, lacking in ((added, added, "plain"), (removed, "all", removed)):
            spread = accuracy_spread({seed: top1[having, seed] - top1[lacking, seed] for seed in seeds})
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
