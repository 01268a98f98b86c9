"""What is measured only when asked for: ReaL labels, corruptions, speed and memory; each added to a result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator

from vit.config import check
from vit.data.images import Split
from vit.evaluation.class_maps import CONVENTIONS as CLASS_CONVENTIONS
from vit.evaluation.class_maps import NUM_CLASSES, read_real_labels, real_accuracy, real_labels_of
from vit.evaluation.comparison.answers import Answered, Question
from vit.evaluation.comparison.contestants import Contestant
from vit.evaluation.comparison.costs import measured_costs
from vit.evaluation.comparison.robustness import corruption_results

RealLabels = dict[int, Sequence[int]]
"""Index of an image in the source → its labels."""


def open_real_labels(path: Path, contestants: Sequence[Contestant], test: Split) -> RealLabels:
    """The images' labels. ValueError for another file, other images, or no model with ImageNet's head."""
    rule = "no model has a head of ImageNet's thousand classes"
    check(any(each.num_classes == NUM_CLASSES for each in contestants), "--real_labels", str(path), rule)
    indices = test.indices.tolist()
    found = real_labels_of([test.source.name(index) for index in indices], read_real_labels(path))
    return dict(zip(indices, found, strict=True))


def add_real_labels(result: dict[str, Any], answered: Sequence[Answered], labels: RealLabels) -> None:
    """`real_top1` of the models whose head is ImageNet's."""
    result["conventions"] = result["conventions"] | {"real": CLASS_CONVENTIONS["real"]}
    for model, each in zip(result["models"], answered, strict=True):
        if each.answers_of_1000 is not None:
            judged = [labels[index] for index in np.asarray(each.predictions.indices).tolist()]
            found = real_accuracy(each.answers_of_1000, judged)
            model |= {"real_top1": found.accuracy, "real_judged": found.num_judged}


def add_corruptions(
    result: dict[str, Any],
    contestants: Sequence[Contestant],
    columns: Sequence[Sequence[int]],
    question: Question,
    seed: int,
) -> None:
    """`corruptions`, and of each model `corrupted_top1` and `mce`."""
    found = corruption_results(contestants, columns, question, seed)
    result["corruptions"] = found
    result["conventions"] = result["conventions"] | found["conventions"]
    for model in result["models"]:
        model["corrupted_top1"] = found["mean_accuracy"][model["name"]]
        model["mce"] = found["mce"][model["name"]]


def add_costs(
    result: dict[str, Any], contestants: Sequence[Contestant], accelerator: Accelerator, batch_size: int
) -> None:
    """Of each model `images_per_second`, its range and `peak_bytes`."""
    found = measured_costs(contestants, accelerator, batch_size)
    result["conventions"] = result["conventions"] | found["conventions"]
    for model in result["models"]:
        model |= found["models"][model["name"]]
