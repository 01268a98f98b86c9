"""Learning curves of several seeds, drawn from the records: `docs/NAME.png`, and its numbers in `docs/NAME.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from results.records import RESULTS, ROOT, read_records
from vit.figures import plot_accuracy_over_time, save_figure

PICTURES: Mapping[str, Mapping[str, str]] = {
    "small_data": {
        "ViT": "cifar10_vit_speedrun_cpu",
        "ViT without AutoAugment": "cifar10_full/vit_speedrun_without_autoaugment",
        "ResNet": "cifar10_resnet_speedrun_cpu",
    },
}
"""Name of a picture → its recipes → their records."""
CONVENTIONS = {
    "curves": "recipe → runs → [minutes of training, accuracy on the validation images] at every validation",
    "minutes": "of optimizer steps, with reading and augmenting, on the machine that the record names",
    "accuracy": "a fraction, of the weights that the run is judged by",
}


def draw(name: str) -> Path:
    """Draw a picture of `PICTURES` into `docs/`, and return its file."""
    file, data = ROOT / "docs" / f"{name}.png", numbers(name)
    save_figure(plot_accuracy_over_time(data["curves"]), file, data)
    return file


def numbers(name: str) -> dict[str, Any]:
    """The numbers of a picture, with their conventions."""
    return {"curves": {own: curves_of(records) for own, records in PICTURES[name].items()}, "conventions": CONVENTIONS}


def curves_of(name: str) -> list[list[tuple[float, float]]]:
    """Minutes of training and validation accuracy at every validation, of each run kept under a name."""
    found = []
    for record in read_records(name):
        prefix = "ema." if record.summary["weights"] == "ema" else ""
        history = (RESULTS / name / f"seed{record.summary['seed']}" / "metrics.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, history) if f"{prefix}val.top1" in row]
        found.append([(row["seconds"] / 60, row[f"{prefix}val.top1"]) for row in rows])
    return found
