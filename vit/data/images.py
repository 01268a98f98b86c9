"""Opening a data set by `data.name`: training and validation images, and separately the test images.

Only `open_test` reads the test set; `open_training` never does, and `check_test` reads file names alone.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import torch

from vit.config import DataConfig, check
from vit.data.decoding import BrokenImage, MissingImages
from vit.data.folders import check_test_folder
from vit.data.sources import open_source
from vit.data.splits import ImageSource, Split, fingerprint, keys_of, split_validation, training_subset
from vit.data.undivided import is_undivided, open_validation

__all__ = [
    "BrokenImage",
    "ImageSource",
    "MissingImages",
    "Split",
    "check_test",
    "fingerprint",
    "open_test",
    "open_training",
    "place_name",
]


def open_training(config: DataConfig) -> tuple[Split, Split]:
    """Open (train, validation). MissingImages if there are none, ValueError if they are invalid.

    Validation images are split off the training images, unless they have a folder beside the test set's.
    """
    source = open_source(config, "train")
    apart = open_validation(config) if config.name == "imagefolder" else None
    if apart is None:
        return split_validation(source, config)
    train = training_subset(source, torch.arange(len(source)), config, keys_of(source))
    counts = torch.bincount(train.labels, minlength=len(source.class_names)).tolist()
    for name, count in zip(source.class_names, counts, strict=True):
        if count == 0:  # as in a list that has the class among its validation or test images alone
            raise MissingImages(f"data.root: {config.root!r} has no training image of the class {name!r}; add one")
    return train, Split(apart, torch.arange(len(apart)))


def check_test(config: DataConfig) -> None:
    """Raise ValueError if file names alone show that there is no usable test set; no image is read.

    Also for a `data.val_fraction` or `data.split_seed` that was set where validation images are apart.
    """
    if config.name != "imagefolder":
        return
    if not is_undivided(config):  # else it is split off the training images
        check_test_folder(config)
    # in a list it was always taken without effect, and runs that were begun so are continued
    seeded = config.split_seed != DataConfig.split_seed and not is_undivided(config)
    cuts = ["val_fraction"] * (config.val_fraction != DataConfig.val_fraction) + ["split_seed"] * seeded
    if cuts and open_validation(config) is not None:
        rule = f"it has no effect: {config.root} has a validation set beside its test set"
        check(False, f"data.{cuts[0]}", getattr(config, cuts[0]), rule)


def place_name(config: DataConfig) -> str:
    """A name for files about a test set, another one for other images: the data set's, and of folders the place."""
    name = re.sub(r"[^\w.-]+", "_", config.name)
    if config.name != "imagefolder":
        return name
    place = Path(config.root).resolve()
    chosen = f"{place}\n{config.test_folder}\n{config.test_fraction}\n{config.split_seed}"
    folder = re.sub(r"[^\w.-]+", "_", place.name)
    return f"{name}-{folder}-{hashlib.sha256(chosen.encode()).hexdigest()[:6]}"


def open_test(config: DataConfig) -> Split:
    """Open all images of the test set. ValueError if they are missing or invalid."""
    source = open_source(config, "test")
    return Split(source, torch.arange(len(source)))
