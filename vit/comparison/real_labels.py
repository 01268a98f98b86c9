"""ReaL labels (Beyer et al. 2020): a second evaluation of ImageNet's validation images, made on request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vit.comparison.predictions import EvalResult
from vit.config import check
from vit.data.images import Split
from vit.evaluation.class_maps import (
    CONVENTIONS,
    NUM_CLASSES,
    imagenet_columns,
    imagenet_real_accuracy,
    read_real_labels,
    real_labels_of,
)
from vit.hub import OpenedModel

RealLabels = dict[int, Sequence[int]]
"""Index of an image in the source → its labels."""


def open_real_labels(path: Path, models: Sequence[OpenedModel], test: Split) -> RealLabels:
    """Read the images' labels. ValueError for another file, other images, or no model with ImageNet's head."""
    rule = "no model has a head of ImageNet's thousand classes"
    check(any(each.num_classes == NUM_CLASSES for each in models), "--real_labels", str(path), rule)
    rule = "the data's classes are not ImageNet's; folders named by wnid, like n01440764, would be"
    check(imagenet_columns(test.source.class_names) is not None, "--real_labels", str(path), rule)
    indices = test.indices.tolist()
    labels = real_labels_of([test.source.name(index) for index in indices], read_real_labels(path))
    return dict(zip(indices, labels, strict=True))


def add_real_labels(result: dict[str, Any], evaluated: Sequence[EvalResult], labels: RealLabels) -> None:
    """Add `real_top1` to the models whose head is ImageNet's."""
    result["conventions"] |= {"real": CONVENTIONS["real"]}
    for row, each in zip(result["models"], evaluated, strict=True):
        if each.imagenet_classes is not None:
            real = [labels[index] for index in np.asarray(each.predictions.indices).tolist()]
            found = imagenet_real_accuracy(each.imagenet_classes, real)
            row |= {"real_top1": found.accuracy, "real_judged": found.num_images}
