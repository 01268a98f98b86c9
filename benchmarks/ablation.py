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

import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from vit.config import check
from vit.config.yaml_files import read_yaml
from vit.experiments.planned_runs import PlannedRun, train_runs
from vit.processor import machine
from vit.settings import ResolvedRun, resolve_run
from vit.tasks.classification import require_classification
from vit.tasks.classification.training import Classification
from vit.training.loop import steps
from vit.training.session import open_session

CONVENTIONS = {
    "epochs": "as many as fit into the minutes, by the seconds of this variant's own steps, measured before",
    "seconds": "of training alone: optimizer steps with reading and augmenting, without validation and the test",
    "effect": "accuracy with the ingredient less without it, of runs of one seed: mean over seeds",
    "interval": "95 %, Student's t over the seeds' differences",
}
_SHARE = re.compile(r"\d+/\d+")
_WARMUP_STEPS, _TIMED_STEPS = 3, 12


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

    def resolved(self, ingredients: Sequence[str], epochs: int) -> ResolvedRun:
        """The settings of a variant. ValueError for a setting that is not valid."""
        chosen = dict(self.settings)
        for name in ingredients:
            chosen |= self.ingredients[name]
        words = [f"--train.epochs={epochs}"]
        words += [f"--{name}={_value(value, epochs)}" for name, value in chosen.items()]
        return resolve_run(self.config, words)


def _value(value: Any, epochs: int) -> Any:
    """`2/3` is that part of the epochs; anything else is as it is written."""
    return round(Fraction(value) * epochs) if isinstance(value, str) and _SHARE.fullmatch(value) else value


def seconds_per_epoch(resolved: ResolvedRun, folder: Path) -> float:
    """Mean over the epochs of a run, from some steps at each size of its images."""
    session = open_session(resolved.config, folder)
    assert isinstance(session.task, Classification)
    loader, epoch, total = session.task.train_loader, 0, 0.0
    for count in loader.augment.epochs_by_size(resolved.config.train.epochs).values():
        session.progress.epoch, session.progress.step_in_epoch = epoch, 0
        total += _seconds_per_step(steps(session)) * count
        epoch += count
    return total * loader.steps_per_epoch / resolved.config.train.epochs


def _seconds_per_step(taken: Iterator[object]) -> float:
    for _ in range(_WARMUP_STEPS):
        next(taken)
    begun, count = time.perf_counter(), 0
    for _, _ in zip(range(_TIMED_STEPS), taken, strict=False):
        count += 1
    check(count > 0, "data.batch_size", count, "an epoch has too few steps to be timed")
    return (time.perf_counter() - begun) / count


def ablate(
    ablation: Ablation, minutes: float, seeds: Sequence[int], folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Train every variant with every seed, and return accuracies and effects."""
    variants, epochs = ablation.variants(), dict[str, int]()
    for name, ingredients in variants.items():
        seconds = seconds_per_epoch(ablation.resolved(ingredients, 12), folder / "timing")
        epochs[name] = max(1, int(60 * minutes / seconds))
        say(f"{name}: {seconds:.1f} s an epoch, {epochs[name]} epochs")
    runs = []
    for seed in seeds:
        for name, ingredients in variants.items():
            resolved = ablation.resolved(ingredients, epochs[name])
            config = replace(require_classification(resolved.config, "config", ablation.config), seed=seed)
            place = folder / re.sub(r"\W+", "_", name) / f"seed{seed}"
            runs.append(PlannedRun(name, f"{name}, seed {seed}", config, resolved.origins, place))
    rows = [_row(run, summary) for run, summary in zip(runs, train_runs(runs), strict=True)]
    return {
        "config": ablation.config,
        "settings": dict(ablation.settings),
        "ingredients": {name: dict(own) for name, own in ablation.ingredients.items()},
        "minutes": minutes,
        "machine": machine("cpu"),
        "runs": rows,
        "effects": list(effects(ablation, rows)),
        "conventions": CONVENTIONS,
    }


def _row(run: PlannedRun, summary: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("test.top1", "val.top1", "epochs", "images_seen", "seconds", "params", "gmacs", "precision", "seed")
    return {"variant": run.recipe, **{name: summary[name] for name in kept}}


def effects(ablation: Ablation, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The effect of each ingredient on the plain recipe and on the whole one, paired by seed."""
    top1 = {(row["variant"], row["seed"]): row["test.top1"] for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    for name in ablation.ingredients:
        for where, having, lacking in (("plain", f"plain + {name}", "plain"), ("all", "all", f"all - {name}")):
            differences = [top1[having, seed] - top1[lacking, seed] for seed in seeds]
            found = {"ingredient": name, "in": where, "effect": statistics.fmean(differences)}
            if len(seeds) > 1:
                half = _quantile(len(seeds) - 1) * statistics.stdev(differences) / len(seeds) ** 0.5
                found["interval"] = [found["effect"] - half, found["effect"] + half]
            yield found


def _quantile(degrees: int) -> float:
    """Student's t that a difference exceeds either way in 5 % of samples."""
    from scipy.stats import t

    return float(t.ppf(0.975, degrees))


def table(result: Mapping[str, Any]) -> str:
    """Markdown: a row for each variant, with its mean accuracy and what its ingredient brings."""
    by_variant: dict[str, list[Mapping[str, Any]]] = {}
    for row in result["runs"]:
        by_variant.setdefault(row["variant"], []).append(row)
    told = {_variant_of(effect): effect for effect in result["effects"]}
    lines = ["| variant | epochs | test top-1 | the ingredient brings |", "| --- | --- | --- | --- |"]
    for name, rows in by_variant.items():
        values = [100 * row["test.top1"] for row in rows]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        cells = (name, str(rows[0]["epochs"]), f"{statistics.fmean(values):.2f}{spread} %", _brings(told.get(name)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _variant_of(effect: Mapping[str, Any]) -> str:
    return f"plain + {effect['ingredient']}" if effect["in"] == "plain" else f"all - {effect['ingredient']}"


def _brings(effect: Mapping[str, Any] | None) -> str:
    if effect is None:
        return ""
    points = f"{100 * effect['effect']:+.2f} points"
    if "interval" not in effect:
        return points
    low, high = effect["interval"]
    return f"{points} ({100 * low:+.1f} to {100 * high:+.1f})"
