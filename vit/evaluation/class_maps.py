"""ImageNet's thousand classes and what else their numbers answer: subsets of them, and the ReaL labels.

A head of ImageNet-1k can be judged on any data whose classes are among the thousand: Imagenette, Tiny-ImageNet, a
folder of folders named by wnid. The list of wnids is the one that timm ships. Knows arrays and names, no models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vit.config import check
from vit.evaluation.predictions import Predictions

NUM_CLASSES = 1000
IMAGENETTE = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}
"""Imagenette's classes in its order (github.com/fastai/imagenette); torchvision names them in words."""
CONVENTIONS = {
    "restricted": "only the logits of the data's classes compete, so the task is as easy as the data has few classes",
    "unrestricted": "all 1,000 logits compete, and an answer outside the data's classes is wrong",
    "real": "Beyer et al. 2020: right if the answer is among the image's labels; images without any are left out",
}
_REAL_NAME = re.compile(r"ILSVRC2012_val_(\d{8})")
_NUM_VALIDATION = 50_000


@cache
def wnids() -> tuple[str, ...]:
    """The thousand names, by class number."""
    from timm.data import ImageNetInfo

    return tuple(ImageNetInfo("imagenet-1k").label_names())


def imagenet_columns(class_names: Sequence[str]) -> list[int] | None:
    """`columns[k]`: ImageNet's number of the data's class k. None: neither wnids of it nor Imagenette's names."""
    numbers = {wnid: number for number, wnid in enumerate(wnids())}
    if list(class_names) == list(IMAGENETTE.values()):
        return [numbers[wnid] for wnid in IMAGENETTE]
    if len(class_names) == 0 or not set(class_names) <= numbers.keys():
        return None
    return [numbers[name] for name in class_names]


@dataclass(frozen=True)
class Readings:
    """One model's answers on a subset, read in both ways (`CONVENTIONS`)."""

    restricted: Predictions
    """Logits (n, classes of the data)."""
    unrestricted: Predictions
    """Logits (n, 1000); labels are ImageNet's numbers."""


def read_subset(answers: Predictions, class_names: Sequence[str]) -> Readings:
    """`answers`: logits (n, 1000) with labels in the data's own numbers, whose names are `class_names`.

    ValueError: the head has not ImageNet's thousand classes, or the data's are not among them.
    """
    width = answers.logits.shape[1]
    check(width == NUM_CLASSES, "model.num_classes", width, "only ImageNet's 1,000 classes can be read as a subset")
    columns = imagenet_columns(class_names)
    if columns is None:
        strange = next((name for name in class_names if name not in wnids()), "")
        rule = "it is no class of ImageNet-1k; folders named by wnid, like n01440764, are"
        raise ValueError(f"data.root: {strange!r} is not valid: {rule}")
    places = np.asarray(columns, dtype=np.int64)
    restricted = replace(answers, logits=answers.logits[:, places], class_names=list(class_names))
    return Readings(restricted, replace(answers, labels=places[answers.labels], class_names=list(wnids())))


# ------------------------------------------------------------------ ReaL


@dataclass(frozen=True)
class RealAccuracy:
    accuracy: float
    """A fraction of the images judged."""
    num_judged: int
    num_left_out: int
    """Without any label."""


def read_real_labels(path: str | Path) -> list[list[int]]:
    """ReaL's `real.json` (Beyer et al. 2020; github.com/google-research/reassessed-imagenet): 50,000 lists of numbers.

    Entry i is of ILSVRC2012_val_{i + 1}. timm ships the file too, as `data/_info/imagenet_real_labels.json`.
    ValueError: it is missing or something else.
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
    """The lists of the images so named; a name holds ILSVRC2012_val_ and eight digits, whatever the folder.

    ValueError names an image whose place in the validation set cannot be told.
    """
    found = []
    for name in names:
        match = _REAL_NAME.search(name)
        known = match is not None and 1 <= int(match[1]) <= len(labels)
        check(known, "real_labels", name, "its name must hold ILSVRC2012_val_ and a number of eight digits")
        assert match is not None
        found.append(labels[int(match[1]) - 1])
    return found


def real_accuracy(answers: NDArray[np.int64], labels: Sequence[Sequence[int]]) -> RealAccuracy:
    """`answers` (n,): ImageNet's class numbers; `labels`: n lists. ValueError: no image has a label."""
    assert len(answers) == len(labels), "one list of labels an answer"
    judged = [int(answer) in entry for answer, entry in zip(answers, labels, strict=True) if entry]
    check(bool(judged), "real_labels", len(labels), "none of the images has a label")
    return RealAccuracy(sum(judged) / len(judged), len(judged), len(labels) - len(judged))
