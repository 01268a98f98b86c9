"""The data set `imagefolder`: a training and a test folder, each with one folder of images per class.

Tiny-ImageNet's own `val/val_annotations.txt` is read as well. Folders without a test set are in `undivided`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from vit.config import DataConfig, check
from vit.data.decoding import SUFFIXES, MissingImages, read_rgb

_LAYOUT = "expected {root}/<class>/*.jpg, or {root}/train/<class>/*.jpg and {root}/val/<class>/*.jpg (or test/)"
_TEST_FOLDERS = ("val", "test", "valid", "validation", "testing")
"""In the order in which they are looked for."""
_NO_IMAGES = (".txt", ".csv", ".tsv", ".json", ".xml", ".yaml", ".md", ".html", ".db", ".ini", ".pdf", ".py")
"""Files beside images whose endings are not worth a word."""
_ANNOTATIONS = "val_annotations.txt"


@dataclass(frozen=True)
class FileSource:
    """Image files below `root`; `files` are relative to it, with forward slashes."""

    root: Path
    files: list[str]
    labels: Tensor
    """int64 (n,), or uint8 (n, k) where an image has any number of labels."""
    class_names: list[str]
    notes: tuple[str, ...] = ()
    """Lines about these files for the user: in the header of a run and in its model card."""

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int, *, smallest: tuple[int, int] | None = None) -> Image.Image:
        return read_rgb(self.root / self.files[index], self.files[index], smallest)

    def name(self, index: int) -> str:
        return self.files[index]


def open_training_folder(config: DataConfig) -> FileSource:
    """Open `<data.root>/train`. The test folder, if any, is only checked for the same class names."""
    root = Path(config.root)
    folder = root / "train"
    if not folder.is_dir():
        raise MissingImages(f"data.root: no training images: {_missing(folder)}; {hint(root)}")
    classes = class_folders(folder)
    test_classes = _classes_if_readable(find_test_folder(config))
    if test_classes is not None:
        _check_same_classes(folder, classes, find_test_folder(config), test_classes)
    return collect(root, folder, classes)


def check_test_folder(config: DataConfig) -> None:
    """ValueError unless the test folder exists, is not the training folder, and has images of every class.

    Only names are read, no file is opened. A folder that cannot be listed yet is checked when it is opened.
    """
    folder, training = find_test_folder(config), Path(config.root) / "train"
    _check_test_folder_exists(config, folder, training)
    if (classes := _classes_if_readable(folder)) is None:
        return
    _check_same_classes(training, class_folders(training), folder, class_folders(folder))
    for name in classes:
        if not any(is_image(path.name) for path in _files_below(folder / name, {})):
            raise _no_images(folder / name)


def _check_test_folder_exists(config: DataConfig, folder: Path, training: Path) -> None:
    root = Path(config.root)
    if not folder.is_dir():
        field = "data.root" if config.test_folder is None else "data.test_folder"
        raise MissingImages(f"{field}: no test images: {_missing(folder)}; {hint(root)}")
    if training.is_dir() and folder.samefile(training):
        raise ValueError(
            f"data.test_folder: {config.test_folder!r} is not valid: it holds the training images; "
            "give a folder of other images"
        )


def open_test_folder(config: DataConfig) -> FileSource:
    """Open the folder of `find_test_folder`. Its classes must be those of `train`."""
    root = Path(config.root)
    folder, training = find_test_folder(config), root / "train"
    _check_test_folder_exists(config, folder, training)
    if (folder / _ANNOTATIONS).is_file():
        if not training.is_dir():
            raise ValueError(f"data.root: {_ANNOTATIONS} needs the class folders of train/: {_missing(training)}")
        return _read_annotated(root, folder, class_folders(training))
    classes = class_folders(folder)
    if training.is_dir():
        _check_same_classes(training, class_folders(training), folder, classes)
    return collect(root, folder, classes)


def open_unlabelled(paths: Sequence[str]) -> FileSource:
    """Open image files, and all images below folders, with the single class ''. ValueError where there are none."""
    files: list[str] = []
    for path in map(Path, paths):
        if path.is_dir():
            images = sorted(str(file) for file in path.rglob("*") if is_image(file.name))
            check(bool(images), "--data", str(path), "the folder holds no images")
            files += images
        else:
            check(path.is_file(), "--data", str(path), "it is not a file, a folder or the name of a data set")
            files.append(str(path))
    if not files:
        raise ValueError("--data: required: no model is a training run; give a data set's name, a folder or images")
    return FileSource(Path(), files, torch.zeros(len(files), dtype=torch.int64), [""])


def find_test_folder(config: DataConfig) -> Path:
    """`data.test_folder`, else the first there is of `val`, `test` and what else people call it; else `val`."""
    root = Path(config.root)
    if config.test_folder is not None:
        return root / config.test_folder
    return next((root / name for name in _TEST_FOLDERS if (root / name).is_dir()), root / "val")


def _missing(folder: Path) -> str:
    return f"there is no folder {str(folder.absolute())!r}"


def hint(root: Path) -> str:
    inside = sorted(path.parent for path in root.glob("*/train")) if root.is_dir() else []
    return f"did you mean --data.root {inside[0]}?" if inside else _LAYOUT.format(root=root)


def is_image(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES


def class_folders(folder: Path, expected: str = "") -> list[str]:
    """List the class folders, sorted; ValueError if there are none, or images next to them.

    `expected` says how the folders should be. Runs that were written beside the classes are left out.
    """
    with os.scandir(folder) as entries:
        found = sorted((entry.name, entry.is_dir()) for entry in entries)
    stray = [name for name, is_dir in found if not is_dir and is_image(name)]
    classes = [name for name, is_dir in found if is_dir and _may_be_class(folder / name)]
    if stray:
        raise ValueError(
            f"data.root: {str(folder / stray[0])!r} is directly in {folder.name}/ and so has no class; "
            f"move every image into a folder of its class, {folder.name}/<class>/{stray[0]}"
        )
    if not classes:
        raise MissingImages(
            f"data.root: {str(folder)!r} holds no class folders; {expected or _LAYOUT.format(root=folder.parent)}"
        )
    return classes


def _may_be_class(folder: Path) -> bool:
    """Not a hidden folder, what macOS puts into archives, or the runs of this package."""
    holds_runs = folder.name == "runs" and any(folder.glob("*/config.yaml"))
    return not folder.name.startswith(".") and folder.name != "__MACOSX" and not holds_runs


def _classes_if_readable(folder: Path) -> list[str] | None:
    """List the class folders; None if that is not possible yet, and the test set is checked when it is opened."""
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK) or (folder / _ANNOTATIONS).is_file():
        return None
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and _may_be_class(folder / entry.name))


def _check_same_classes(training: Path, expected: list[str], folder: Path, found: list[str]) -> None:
    if expected == found:
        return
    only_train, only_test = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    parts = [
        f"only in {where}/: {', '.join(map(repr, names[:3]))}{' …' if len(names) > 3 else ''} ({len(names)})"
        for where, names in ((training.name, only_train), (folder.name, only_test))
        if names
    ]
    raise ValueError(
        f"data.root: the classes of {str(training)!r} and {str(folder)!r} differ: {'; '.join(parts)}; "
        "make both hold the same class folders, or choose another data.test_folder"
    )


def collect(root: Path, folder: Path, classes: list[str]) -> FileSource:
    """All images below the class folders. ValueError for a class without any."""
    files: list[str] = []
    unread: Counter[str] = Counter()
    labels: list[int] = []
    visited: dict[tuple[int, int], str] = {}
    prefix = "" if folder == root else f"{Path(os.path.relpath(folder, root)).as_posix()}/"
    for label, name in enumerate(classes):
        paths = list(_files_below(folder / name, visited))
        images = sorted(path.relative_to(folder / name).as_posix() for path in paths if is_image(path.name))
        others = Counter(path.suffix.lower() for path in paths if not is_image(path.name))
        if not images:
            raise _no_images(folder / name, others)
        unread += others
        files += [f"{prefix}{name}/{image}" for image in images]
        labels += [label] * len(images)
    notes = tuple(f"not read: {said}; JPEG or PNG would be" for said in _unread(unread))
    return FileSource(root, files, torch.tensor(labels, dtype=torch.int64), classes, notes)


def _files_below(folder: Path, visited: dict[tuple[int, int], str]) -> Iterator[Path]:
    """All files below that are not hidden, links to folders followed; `visited`: folders by device and inode.

    ValueError for a folder that is reached twice, whose images would count twice, in training and test.
    """
    for parent, _, names in os.walk(folder, followlinks=True):
        status = Path(parent).stat()
        first = visited.setdefault((status.st_dev, status.st_ino), parent)
        if first != parent:
            raise ValueError(
                f"data.root: {first!r} and {parent!r} are one folder, by a link, and its images would count twice; "
                "remove the link"
            )
        yield from (Path(parent) / name for name in names if not name.startswith("."))


def _no_images(folder: Path, others: Counter[str] | None = None) -> ValueError:
    """`others`: endings of the files that are there."""
    instead = "".join(f", but {said}" for said in _unread(others or Counter()))
    return ValueError(
        f"data.root: class folder {str(folder)!r} holds no images "
        f"({', '.join(sorted(SUFFIXES))}){instead}; add some, or remove it here and in every other part"
    )


def _unread(endings: Counter[str]) -> list[str]:
    """A text about files that are no images by their endings, if there are any that could be."""
    counted = [(ending, count) for ending, count in endings.most_common() if ending not in _NO_IMAGES]
    shown = ", ".join(f"{count:,} {ending or 'without an ending'}" for ending, count in counted)
    several = sum(count for _, count in counted) != 1
    return [f"{shown} file{'s' if several else ''}"] if counted else []


def _read_annotated(root: Path, folder: Path, classes: list[str]) -> FileSource:
    """Read Tiny-ImageNet as Stanford publishes it: `val/images/*` with a table of file name, class and box."""
    try:
        lines = (folder / _ANNOTATIONS).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"data.root: {folder / _ANNOTATIONS} is not text in UTF-8") from error
    rows = [line.split("\t")[:2] for line in lines if line]
    if short := next((number for number, row in enumerate(rows, 1) if len(row) < 2), None):
        raise ValueError(f"data.root: {folder / _ANNOTATIONS}: row {short} has no class behind a tab")
    if not rows:
        raise ValueError(f"data.root: {folder / _ANNOTATIONS} has no rows")
    unknown = sorted({name for _, name in rows} - set(classes))
    if unknown:
        raise ValueError(f"data.root: {folder / _ANNOTATIONS} names classes that train/ does not have: {unknown[:3]}")
    number = {name: label for label, name in enumerate(classes)}
    files = [f"{folder.relative_to(root).as_posix()}/images/{file}" for file, _ in rows]
    labels = torch.tensor([number[name] for _, name in rows], dtype=torch.int64)
    return FileSource(root, files, labels, classes)
