"""ReaL labels (Beyer et al. 2020): a second evaluation of ImageNet's validation images, made on request."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vit.comparison.predictions import EvalResult
from vit.config import check
from vit.data.images import Split
from vit.evaluation.class_maps import NUM_CLASSES, imagenet_columns
from vit.hub import OpenedModel

RealLabels = dict[int, Sequence[int]]
"""Index of an image in the source → its labels."""
CONVENTION = "Beyer et al. 2020: right if the prediction is among the image's labels; images without any are left out"
_NAME = re.compile(r"ILSVRC2012_val_(\d{8})")
_NUM_VALIDATION = 50_000


@dataclass(frozen=True)
class RealAccuracy:
    accuracy: float
    """Fraction of the images that have labels."""
    num_images: int
    num_unlabelled: int


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
    result["conventions"] |= {"real": CONVENTION}
    for row, each in zip(result["models"], evaluated, strict=True):
        if each.imagenet_classes is not None:
            real = [labels[index] for index in np.asarray(each.predictions.indices).tolist()]
            found = imagenet_real_accuracy(each.imagenet_classes, real)
            row |= {"real_top1": found.accuracy, "real_judged": found.num_images}


def read_real_labels(path: str | Path) -> list[list[int]]:
    """Read ReaL's `real.json` (Beyer et al. 2020; github.com/google-research/reassessed-imagenet): 50,000 label lists.

    Entry i belongs to ILSVRC2012_val_{i + 1}. timm ships the file as `data/_info/imagenet_real_labels.json`.
    ValueError if it is missing or another kind of file.
    """
    path = Path(path)
    check(path.is_file(), "real_labels", str(path), "there is no such file")
    try:
        labels = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"real_labels: {str(path)!r} is not valid: it is not JSON ({error})") from error
    is_lists = isinstance(labels, list) and all(isinstance(entry, list) for entry in labels)
    numbers = [number for entry in labels for number in entry] if is_lists else [-1]
    fits = all(isinstance(number, int) and 0 <= number < NUM_CLASSES for number in numbers)
    check(is_lists and fits, "real_labels", str(path), "it must hold a list of class numbers for each image")
    check(len(labels) == _NUM_VALIDATION, "real_labels", str(path), f"it must hold {_NUM_VALIDATION} lists")
    return labels


def real_labels_of(names: Sequence[str], labels: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Find the labels of images by names, which hold ILSVRC2012_val_ and eight digits, whatever the folder.

    ValueError naming an image whose name does not.
    """
    found = []
    for name in names:
        match = _NAME.search(name)
        known = match is not None and 1 <= int(match[1]) <= len(labels)
        check(known, "real_labels", name, "its name must hold ILSVRC2012_val_ and a number of eight digits")
        assert match is not None
        found.append(labels[int(match[1]) - 1])
    return found


def imagenet_real_accuracy(predicted: NDArray[np.int64], labels: Sequence[Sequence[int]]) -> RealAccuracy:
    """Compute ReaL accuracy of predicted ImageNet classes (n,). ValueError if no image has `labels`."""
    assert len(predicted) == len(labels), "one list of labels for each prediction"
    hits = [int(number) in entry for number, entry in zip(predicted, labels, strict=True) if entry]
    check(bool(hits), "real_labels", len(labels), "none of the images has a label")
    return RealAccuracy(sum(hits) / len(hits), len(hits), len(labels) - len(hits))
