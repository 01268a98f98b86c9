"""From `data.name` to the images to train on, to validate on, and, by a call of its own, to test on.

The one door to the data sets. `open_test` is the only way to the test set, and `open_training` never touches
it; `check_test` looks at the names of its folders.
"""

from __future__ import annotations

import torch

from vit.config import DataConfig, nearest
from vit.data.decoding import BrokenImage
from vit.data.folders import check_test_folder, open_test_folder, open_training_folder
from vit.data.sources import ImageSource, Part, open_digits, open_fake, open_torchvision
from vit.data.splits import Split, cut, fingerprint

__all__ = ["BrokenImage", "ImageSource", "Split", "check_test", "fingerprint", "open_test", "open_training"]

NAMES = ("digits", "cifar10", "cifar100", "imagenette", "imagefolder", "fake", "torchvision:CLASS")


def open_training(config: DataConfig) -> tuple[Split, Split]:
    """(train, validation). ValueError where the data are missing or not as they should be."""
    return cut(_open(config, "train"), config)


def check_test(config: DataConfig) -> None:
    """ValueError where it shows from names alone that there is no usable test set; no image of it is read."""
    if config.name == "imagefolder":
        check_test_folder(config)


def open_test(config: DataConfig) -> Split:
    """All images of the test set. ValueError where the data are missing or not as they should be."""
    source = _open(config, "test")
    return Split(source, torch.arange(len(source)))


def _open(config: DataConfig, part: Part) -> ImageSource:
    if config.name == "digits":
        return open_digits(part)
    if config.name == "fake":
        return open_fake(config, part)
    if config.name == "imagefolder":
        return open_training_folder(config) if part == "train" else open_test_folder(config)
    if config.name in ("cifar10", "cifar100"):
        return open_torchvision(config, config.name.upper(), part)
    if config.name == "imagenette":  # the published set whose shorter side is 320: above any crop at 224
        return open_torchvision(config, "Imagenette", part, size="320px")
    kind, _, class_name = config.name.partition(":")
    if kind == "torchvision" and class_name:
        return open_torchvision(config, class_name, part)
    raise ValueError(f"data.name: {config.name!r} is not a known data set: {nearest(config.name, NAMES)}")
