"""The table of fine-tuned models: how each was trained, and its accuracy over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from vit.comparison.tables import Table, difference_text, pair_label, percent, percent_with_interval, titles
from vit.evaluation.statistics import accuracy_spread

CONVENTIONS = {
    "fine-tuning": "all models saw as many images of the same training set, in the same order with the same "
    "augmentation of each seed; the weights are those that were best on the validation split",
    "wall time": "of the training steps, without reading the weights, validation and test",
    "over seeds": "mean and standard deviation (n - 1) over seeds, which draw the new head, the order and the "
    "augmentation; differences are taken within each seed, with the 95 % t-interval of their mean",
}
_NEW_HEADS = "Every model got a new head, so there is no accuracy before fine-tuning."


def seed_statistics(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`accuracies` of each model over seeds, and `differences` of each pair within seeds."""
    by_model: dict[str, dict[int, float]] = {}
    for row in rows:
        by_model.setdefault(row["name"], {})[row["seed"]] = row["test.top1"]
    return {
        "accuracies": {name: accuracy_spread(by_seed) for name, by_seed in by_model.items()},
        "differences": [
            {
                "first": a,
                "second": b,
                **accuracy_spread({seed: by_model[a][seed] - by_model[b][seed] for seed in by_model[a]}),
            }
            for a, b in combinations(by_model, 2)
        ],
    }


def finetuning_tables(result: Mapping[str, Any]) -> list[Table]:
    """How the first seed's runs were trained and, with several seeds, what they say together."""
    result = dict(result)
    told = result["finetuning"]
    names = titles(result)
    first = [next(row for row in told["runs"] if row["name"] == name) for name in names]
    found = {model["name"]: model for model in result["models"]}
    rows = [
        ["source", *(row["source"] for row in first)],
        ["pre-training data", *(row["pretraining_data"] for row in first)],
        ["recipe", *(row["recipe"] for row in first)],
        ["image size", *(row["image_size"] for row in first)],
        ["training images", *(f"{row['num_images']:,}" for row in first)],
        ["images seen", *(f"{row['images_seen']:,} in {_epochs(row)}" for row in first)],
        ["wall time", *(_minutes(row) for row in first)],
        ["speed of training", *(f"{row['images_per_second']:.1f} images/s" for row in first)],
        ["top-1", *(_top1(found[row["name"]]) for row in first)],
    ]
    note = _NEW_HEADS if all(row["new_head"] for row in first) else ""
    tables = [Table("Fine-tuning", ["", *names.values()], rows, note)]
    if len(told["runs"]) > len(first):
        tables += _seed_tables(result)
    return tables


def _seed_tables(result: dict[str, Any]) -> list[Table]:
    told, names = result["finetuning"], titles(result)
    seeds = list(next(iter(told["accuracies"].values()))["by_seed"])
    accuracies = [
        [
            names[name],
            *(percent(spread["by_seed"][seed]) for seed in seeds),
            f"{percent(spread['mean'])} ± {100 * spread['sd']:.2f}",
        ]
        for name, spread in told["accuracies"].items()
    ]
    differences = [
        [pair_label(result, pair), difference_text((100 * pair["mean"], 100 * pair["low"], 100 * pair["high"]), 2, 1)]
        for pair in told["differences"]
    ]
    header = ["top-1", *(f"seed {seed}" for seed in seeds), "mean ± standard deviation"]
    return [
        Table("Over seeds", header, accuracies, "All else on this page is of the first seed."),
        Table("Differences over seeds", ["first − second", "points"], differences, "In brackets: 95 % t-intervals."),
    ]


def finetuning_summary(result: Mapping[str, Any]) -> str:
    """One line for each model, for a terminal."""
    told = result["finetuning"]
    width = max(map(len, told["accuracies"]))
    return "\n".join(
        f"{row['name']:<{width}}  seed {row['seed']}: top-1 {percent(row['test.top1'])} after {row['images_seen']:,} "
        f"images in {_epochs(row)}, {_minutes(row)}, {row['images_per_second']:.1f} images/s; {row['recipe']}; "
        f"pre-trained on {row['pretraining_data']}"
        for row in told["runs"]
    )


def _top1(model: Mapping[str, Any]) -> str:
    return percent_with_interval(model["top1"], model["top1_interval"])


def _epochs(row: Mapping[str, Any]) -> str:
    return f"{row['epochs']} epoch{'s' * (row['epochs'] != 1)}"


def _minutes(row: Mapping[str, Any]) -> str:
    return f"{row['seconds'] / 60:.1f} minutes"
