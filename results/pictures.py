"""The documents' pictures of records: `docs/NAME.png`, and its numbers in `docs/NAME.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from results.records import RESULTS, ROOT, read_records
from vit.config import check
from vit.figures import Estimate, plot_accuracy_over_time, plot_data_size, plot_interval_panels, save_figure

PICTURES: Mapping[str, Mapping[str, str]] = {
    "small_data": {
        "ViT": "cifar10_vit_speedrun_cpu",
        "ResNet": "cifar10_resnet_speedrun_cpu",
    },
}
"""Learning curves: name of the picture → its recipes → their records."""
DRAWN_SEEDS: Mapping[str, Sequence[int]] = {"small_data": (2, 3, 4)}
"""Picture → the seeds of it, those whose minutes can be compared: both recipes at once, on two cores of one machine."""
CLOSE_UP = 0.06
"""The part of the accuracies that a second panel shows again."""
BY_IMAGES: Mapping[str, Mapping[str, str]] = {
    "cifar10_data_size": {
        "cifar10_resnet_speedrun_cpu": "ResNet",
        "cifar10_vit_speedrun_cpu": "ViT",
        "cifar10_vit_contrastive_cpu": "ViT from the contrastive encoder",
    },
}
"""Accuracy against the number of images: name of the picture, and of the JSON of `vit compare --train` among the
results → its recipes → what they are called. The first is the one that others are compared with.
"""
ABLATIONS: tuple[str, ...] = ("cifar10_ablation",)
"""Effects of ingredients: name of the picture, and of the JSON of `python -m benchmarks ablation` among the results."""
RECIPES = {"plain": "added to the plain recipe", "best": "in the best recipe"}
"""The recipes that an ablation's ingredients are added to or left out of, in words."""
CONVENTIONS = {
    "curves": "recipe → runs → [minutes of training, accuracy on the validation images] at every validation",
    "minutes": "of optimizer steps, with reading and augmenting, on the machine that the record names",
    "accuracy": "a fraction, of the weights that the run was evaluated with",
}


def draw(name: str) -> Path:
    """Draw a picture into `docs/`, and return its file."""
    file, data = ROOT / "docs" / f"{name}.png", numbers(name)
    if name in PICTURES:
        figure = plot_accuracy_over_time(data["curves"], close_up=CLOSE_UP)
    elif name in ABLATIONS:
        estimates = {recipe: [_estimate(effect) for effect in found] for recipe, found in data["effects"].items()}
        figure = plot_interval_panels(estimates, f"points of test accuracy, {data['seeds']}", signed=True)
    else:
        figure = plot_data_size(data["curves"], data["differences"])
    save_figure(figure, file, data)
    return file


def numbers(name: str) -> dict[str, Any]:
    """The numbers of a picture, with their conventions."""
    if name in PICTURES:
        recipes = {own: curves_of(records, DRAWN_SEEDS[name]) for own, records in PICTURES[name].items()}
        return {"curves": recipes, "conventions": CONVENTIONS}
    if name in ABLATIONS:
        result = json.loads((RESULTS / f"{name}.json").read_text())
        seeds = len(whole_seeds(name, result))
        told = "one seed" if seeds == 1 else f"mean of {seeds} seeds, 95 % interval"
        return {"effects": effects(name), "seeds": told, "conventions": result["conventions"]}
    return data_size(name)


def data_size(name: str) -> dict[str, Any]:
    """Read what `vit compare --train` has written, with its recipes called as in `BY_IMAGES`."""
    found, called = json.loads((RESULTS / f"{name}.json").read_text()), BY_IMAGES[name]
    named = {
        kind: {called[recipe]: points for recipe, points in found[kind].items()} for kind in ("curves", "differences")
    }
    return {**found, **named, "runs": [{**run, "recipe": called[run["recipe"]]} for run in found["runs"]]}


def whole_seeds(name: str, result: Mapping[str, Any]) -> list[int]:
    """The seeds that an ablation's effects are of. ValueError while there is none with every variant."""
    check(bool(result["effects"]), "results", name, "it has no seed with which every variant is trained yet")
    return list(result["effects"][0]["seeds"])


def effects(name: str) -> dict[str, list[dict[str, Any]]]:
    """For each recipe, plain and best, the ingredients with `name`, `value`, `low` and `high`, the largest value first.

    `low` and `high` are None with one seed. Both recipes have the same ingredients, without one whose effect on either
    is not known as a run has diverged, in the same order, which is that of the last.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for effect in json.loads((RESULTS / f"{name}.json").read_text())["effects"]:
        ingredient, (low, high) = effect["ingredient"], effect.get("interval", (None, None))
        recipe = RECIPES["plain" if effect["variant"].startswith("plain") else "best"]
        own = {"name": ingredient, "value": effect["effect"], "low": low, "high": high}
        found.setdefault(recipe, {})[ingredient] = own
    last = list(found.values())[-1]
    known = [ingredient for ingredient in last if all(ingredient in own for own in found.values())]
    order = sorted(known, key=lambda ingredient: -last[ingredient]["value"])
    return {recipe: [own[ingredient] for ingredient in order] for recipe, own in found.items()}


def _estimate(effect: dict[str, Any]) -> Estimate:
    """Without an interval it is drawn as a point."""
    ends = {end: effect["value"] if effect[end] is None else effect[end] for end in ("low", "high")}
    return Estimate(**{**effect, **ends})


def curves_of(name: str, seeds: Sequence[int]) -> list[list[tuple[float, float]]]:
    """Minutes of training and validation accuracy at every validation, of the runs with these seeds under a name."""
    found = []
    for record in read_records(name):
        if record.summary["seed"] not in seeds:
            continue
        prefix = "ema." if record.summary["weights"] == "ema" else ""
        history = (RESULTS / name / f"seed{record.summary['seed']}" / "metrics.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, history) if f"{prefix}val.top1" in row]
        found.append([(row["seconds"] / 60, row[f"{prefix}val.top1"]) for row in rows])
    return found
