"""Images without a test set of their own: `CLASS/*.jpg`, `train/` alone, or a CSV list. A test part is split off.

The part is the same whenever it is opened: `data.test_fraction` of every class, chosen by `data.split_seed`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from vit.config import DataConfig, check
from vit.data.archives import image_root
from vit.data.class_folders import class_folders, collect, hint
from vit.data.decoding import MissingImages
from vit.data.file_source import FileSource
from vit.data.folders import open_validation_folder
from vit.data.lists import read_list
from vit.data.parts import find_parts, folders_in, training_folder_in
from vit.data.splits import keys_of, stratified

Part = Literal["train", "test"]


def is_undivided(config: DataConfig) -> bool:
    """Whether `data.root` is a list, or a folder without a test set whose name is known or configured.

    ValueError for a `data.test_folder` beside a list.
    """
    root = image_root(config)
    if root.is_file():
        rule = f"it has no effect beside a list; mark test images in {root.name} by a column 'split'"
        check(config.test_folder is None, "data.test_folder", config.test_folder, rule)
        return True
    parts = find_parts(config)
    if parts.test is not None or not root.is_dir():
        return False
    return parts.train is not None or not any(map(training_folder_in, folders_in(root)))


def open_undivided(config: DataConfig, part: Part) -> FileSource:
    """Open the part that is trained on, or the test part that is split off. ValueError for images that have no class.

    A list may divide its images itself, by a column `split`.
    """
    root = image_root(config)
    if root.is_file():
        whole, divided = read_list(root)
    else:
        parts, divided = find_parts(config), None
        folder = parts.train or root
        classes = class_folders(folder, hint(root))
        if len(classes) == 1:
            found = f"{config.root!r} holds one class folder, {classes[0]!r}, and two are needed"
            raise MissingImages(f"data.root: {found}; {hint(root)}")
        whole = collect(root, folder, classes)
        whole = replace(whole, notes=(*parts.notes, *whole.notes))
    if divided is not None:
        check_no_cut(config, f"{root.name} divides its images by the column 'split'")
        return _part(whole, torch.tensor([part == each for each in divided]))
    return _cut(whole, config, part)


def open_validation(config: DataConfig) -> FileSource | None:
    """Open the validation images that have a folder of their own, or are marked in a list; None: there are none."""
    root = image_root(config)
    if not root.is_file():
        return open_validation_folder(config)
    whole, divided = read_list(root)
    if divided is None or "validation" not in divided:
        return None
    return _part(whole, torch.tensor([each == "validation" for each in divided]))


def without_cut(config: DataConfig, own: Iterable[DataConfig]) -> DataConfig:
    """The settings by which all images of a place without parts are for the test, not a part that is split off.

    Not where one of `own` is about the same place, whose other images were trained on, nor where the part is chosen.
    """
    place = Path(config.root).resolve()
    cut_there = any(each.name == config.name and Path(each.root).resolve() == place for each in own)
    if config.name != "imagefolder" or cut_there or config.test_fraction != DataConfig.test_fraction:
        return config
    root = image_root(config)
    if not is_undivided(config) or (root.is_file() and read_list(root)[1] is not None):
        return config
    return replace(config, test_fraction=1.0)


def check_no_cut(config: DataConfig, why: str) -> None:
    """ValueError for a `data.test_fraction` that was set and has no effect."""
    default = config.test_fraction == DataConfig.test_fraction
    check(default, "data.test_fraction", config.test_fraction, f"it has no effect: {why}")


def _cut(whole: FileSource, config: DataConfig, part: Part) -> FileSource:
    fraction = config.test_fraction
    if part == "train" and fraction == 1:
        rule = "it leaves no images to train on; give a smaller part"
        raise MissingImages(f"data.test_fraction: {fraction} is not valid: {rule}")
    counts = torch.bincount(whole.labels, minlength=len(whole.class_names))
    rarest = int(counts.argmin())
    if fraction < 1 and counts[rarest] < 3:
        number = f"{int(counts[rarest])} image{'s' if counts[rarest] > 1 else ''}"
        raise MissingImages(
            f"data.root: class {whole.class_names[rarest]!r} has {number}; every class needs at least 3, one each to "
            "train on, for validation and for the test"
        )
    is_test = stratified(whole.labels, fraction, seed=config.split_seed, stream="test", keys=keys_of(whole))
    # of a rare class, two images stay to train on and to validate
    left = torch.bincount(whole.labels[~is_test], minlength=len(counts))
    for label in torch.nonzero(left < 2).flatten().tolist():
        if fraction < 1:
            is_test[torch.nonzero((whole.labels == label) & is_test).flatten()[: 2 - int(left[label])]] = False
    note = (
        f"{config.root} has no test set: {int(is_test.sum()):,} of its {len(whole):,} images are split off as one "
        f"(data.test_fraction {fraction:g} of every class, data.split_seed {config.split_seed})"
    )
    if fraction == 1:
        note = f"{config.root} has no parts: all its {len(whole):,} images are test images"
    chosen = _part(whole, is_test if part == "test" else ~is_test)
    return replace(chosen, notes=(note, *whole.notes))


def _part(whole: FileSource, chosen: torch.Tensor) -> FileSource:
    files = [whole.files[index] for index in torch.nonzero(chosen).flatten().tolist()]
    return replace(whole, files=files, labels=whole.labels[chosen])
