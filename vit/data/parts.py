"""Which folders of `data.root` are its parts: training, validation and test images, by their names and what they hold.

A folder is a part if its name is one's (`vit.config.part_names`), unless it holds images alone: these have no class.
No image is opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vit.config import DataConfig
from vit.config.part_names import PartName, part_named
from vit.data.archives import image_root
from vit.data.decoding import SUFFIXES

ANNOTATIONS = "val_annotations.txt"
"""Tiny-ImageNet's table of the classes of its validation images, which lie in one folder."""
SYSTEM_FOLDERS = ("__MACOSX", "lost+found", "$RECYCLE.BIN", "System Volume Information")
"""Folders of archives and disks, some of which nobody may read."""
_FEWEST_CLASSES = 2
"""Class folders beside a folder of images that is called `train`, from which on it is a class too."""


@dataclass(frozen=True)
class Parts:
    """The folders of the parts; None: there is none, and where there is no test set one is split off."""

    train: Path | None = None
    validation: Path | None = None
    """Only where there is a test set beside it; else that is the test set."""
    test: Path | None = None
    notes: tuple[str, ...] = ()
    """Lines for the user, about folders that are not used."""


def find_parts(config: DataConfig) -> Parts:
    """The parts of `data.root`, the test set by `data.test_folder` where that is given.

    ValueError for two folders of one part, and for a part of images without classes beside class folders.
    """
    root = image_root(config)
    chosen = None if config.test_folder is None else root / config.test_folder
    named, others = _sorted_folders(root)
    if not named and chosen is None:
        return Parts()
    train = _only(named, "train")
    test, validation = chosen, None
    if chosen is None:
        validation, test = _only(named, "validation"), _only(named, "test")
        if validation and (test is None or not _has_classes_of(train, test)):
            validation, test = None, validation
    elif chosen in _candidates(named, "test"):
        validation = _only(named, "validation")
    used = [part for part in (train, validation, test) if part is not None]
    return Parts(train, validation, test, _notes(used, [*named, *others]))


def folders_in(folder: Path) -> list[Path]:
    """The folders that may be classes or parts, sorted: not hidden ones, a disk's own, and runs of this package.

    None of a folder that is not there.
    """
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    return [folder / name for name in names if _may_be_class(folder / name)]


def training_folder_in(folder: Path) -> Path | None:
    """A training part of class folders; None where there is none, or that cannot be known."""
    if not os.access(folder, os.R_OK | os.X_OK):
        return None
    return next((part for part in _candidates(folders_in(folder), "train") if folders_in(part)), None)


def is_image(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES


def holds_images(folder: Path) -> bool:
    """Whether there is an image at any depth; links are not followed."""
    return any(is_image(name) for _, _, names in os.walk(folder) for name in names)


def listed(names: Iterable[str], last: str = "and", most: int = 3) -> str:
    """`'a', 'b' and 'c'`; more than `most` are counted."""
    shown = [repr(name) for name in names]
    if len(shown) > most:
        shown = [*shown[:most], f"{len(shown) - most} more"]
    return f" {last} ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _may_be_class(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in SYSTEM_FOLDERS:
        return False
    is_run = (folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir()
    holds_runs = folder.name == "runs" and any(folder.glob("*/config.yaml"))
    return not is_run and not holds_runs


def _sorted_folders(root: Path) -> tuple[list[Path], list[Path]]:
    """Folders that are parts, and all others: classes, where there are no parts."""
    folders = folders_in(root)
    named = [folder for folder in folders if part_named(folder.name) and not _holds_images_alone(folder)]
    flat = [folder for folder in folders if part_named(folder.name) and folder not in named]
    classes = [folder for folder in folders if not part_named(folder.name)]
    if flat and not _candidates(named, "train"):
        trains = _candidates(flat, "train")
        if trains and sum(map(holds_images, classes)) < _FEWEST_CLASSES:
            named += trains  # whose images have no class, as opening it says
        elif not trains and (beside := next(filter(holds_images, classes), None)):
            raise ValueError(
                f"data.root: {str(flat[0])!r} is named as a part and holds images without a class, beside the class "
                f"folder {beside.name!r}; move it elsewhere, or rename it if it is a class"
            )
    return named, [folder for folder in folders if folder not in named]


def _holds_images_alone(folder: Path) -> bool:
    """Images and no folder; False for a folder that cannot be listed."""
    if not os.access(folder, os.R_OK | os.X_OK):
        return False
    has_image = False
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir() and not entry.name.startswith("."):
                return False
            has_image = has_image or is_image(entry.name)
    return has_image


def _candidates(folders: Sequence[Path], part: PartName) -> list[Path]:
    return [folder for folder in folders if part_named(folder.name) == part]


def _only(folders: Sequence[Path], part: PartName) -> Path | None:
    found = _candidates(folders, part)
    if len(found) > 1:
        remedy = "join them" if part == "train" else "keep one, or name the test set by data.test_folder"
        names = listed(folder.name for folder in found)
        raise ValueError(f"data.root: {str(found[0].parent)!r} holds {names}, each a {part} part by its name; {remedy}")
    return found[0] if found else None


def _has_classes_of(train: Path | None, folder: Path) -> bool:
    """Whether a folder has classes of the training folder, or that cannot be known."""
    if train is None or (folder / ANNOTATIONS).is_file() or not os.access(folder, os.R_OK | os.X_OK):
        return True
    return bool({path.name for path in folders_in(folder)} & {path.name for path in folders_in(train)})


def _notes(used: Sequence[Path], folders: Sequence[Path]) -> tuple[str, ...]:
    """A line that names the folders of images that are left out."""
    left = [folder for folder in folders if folder not in used and holds_images(folder)]
    unused = [f"{folder.name}/" for folder in sorted(left) if not any(folder in part.parents for part in used)]
    beside = listed(f"{part.name}/" for part in used)
    return (f"not used: {listed(unused)}, beside {beside}",) if unused else ()
