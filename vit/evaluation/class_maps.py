"""Mapping ImageNet's thousand classes to data of fewer classes, and the ReaL labels.

A head of ImageNet-1k can be evaluated on any data whose classes are among the thousand: Imagenette, Tiny-ImageNet, a
folder of folders named by wnid. The list of wnids comes from timm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vit.config import check

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
    "restricted": "only the logits of the data's classes are compared, so fewer classes make the task easier",
    "unrestricted": "all logits of the head are compared, and a prediction outside the data's classes is wrong",
    "real": "Beyer et al. 2020: right if the prediction is among the image's labels; images without any are left out",
}
_REAL_NAME = re.compile(r"ILSVRC2012_val_(\d{8})")
_NUM_VALIDATION = 50_000


@cache
def imagenet_wnids() -> tuple[str, ...]:
    """List the thousand wnids by class number."""
    from timm.data import ImageNetInfo

    return tuple(ImageNetInfo("imagenet-1k").label_names())


def imagenet_columns(class_names: Sequence[str]) -> list[int] | None:
    """Map each of the data's classes to ImageNet's number; None unless they are wnids of it or Imagenette's names."""
    numbers = {wnid: number for number, wnid in enumerate(imagenet_wnids())}
    if list(class_names) == list(IMAGENETTE.values()):
        return [numbers[wnid] for wnid in IMAGENETTE]
    if len(class_names) == 0 or not set(class_names) <= numbers.keys():
        return None
    return [numbers[name] for name in class_names]


# ------------------------------------------------------------------ ReaL


@dataclass(frozen=True)
class RealAccuracy:
    accuracy: float
    """Fraction of the images that have labels."""
    num_images: int
    num_unlabelled: int


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
        match = _REAL_NAME.search(name)
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
