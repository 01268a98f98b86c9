"""The data set `imagefolder`: a training and a test folder, each with one folder of images per class.

Which folders these are is in `parts`, what each of them holds in `class_folders`; folders without a test set are in
`undivided`. Tiny-ImageNet's own `val/val_annotations.txt` is read as well.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch

from vit.config import DataConfig
from vit.config.part_names import part_named
from vit.config.rules import nearest_path
from vit.data.archives import image_root
from vit.data.class_folders import class_folders, collect, files_below, hint, no_images
from vit.data.decoding import MissingImages
from vit.data.file_source import FileSource
from vit.data.parts import (
    ANNOTATIONS,
    Parts,
    find_parts,
    folders_in,
    holds_images,
    is_image,
    listed,
    training_folder_in,
)


def check_root(config: DataConfig) -> None:
    """MissingImages where `data.root` is not there, as when it was moved."""
    root = Path(config.root)
    if not root.exists():
        near = nearest_path(root)
        remedy = f"; {near}" if near else "; if its images were moved, give their folder by --data.root"
        raise MissingImages(f"data.root: there is no folder {str(root.absolute())!r}{remedy}")


def open_training_folder(config: DataConfig) -> FileSource:
    """Open `<data.root>/train`. Validation and test folder, if any, are only checked for the same class names."""
    root, parts = image_root(config), find_parts(config)
    folder = parts.train or root / "train"
    if not folder.is_dir():
        _check_named_test_folder(config)
        raise MissingImages(f"data.root: no training images: {_missing(folder)}; {_remedy(root, parts)}")
    classes = class_folders(folder)
    for other in filter(None, (parts.validation, parts.test)):
        if (found := _classes_if_readable(other)) is not None:
            _check_same_classes(folder, classes, other, found)
    source = collect(root, folder, classes)
    said = (_said_of_validation(parts.validation, parts.test), *parts.notes) if parts.validation else parts.notes
    return replace(source, notes=(*said, *source.notes))


def _remedy(root: Path, parts: Parts) -> str:
    """An answer to a missing training folder."""
    others = [folder for folder in folders_in(root) if not part_named(folder.name) and not training_folder_in(folder)]
    classes = [folder.name for folder in others if parts.test and folder != parts.test and holds_images(folder)]
    return f"move the class folders {listed(classes)} into it" if classes else hint(root)


def _said_of_validation(validation: Path, test: Path | None) -> str:
    tested = test.name if test else "test"
    return f"{validation.name}/ chooses the best checkpoint, and {tested}/ is the test set (nothing is split off)"


def open_validation_folder(config: DataConfig) -> FileSource | None:
    """Open validation images that have a folder beside the test set's; None: they are split off those of `train`."""
    parts = find_parts(config)
    return None if parts.validation is None else _open_beside(config, parts.validation)


def check_test_folder(config: DataConfig) -> None:
    """ValueError unless the test folder exists, is apart from the training folder, and has images of every class.

    Only names are read, no file is opened. A folder that cannot be listed yet is checked when it is opened.
    """
    check_root(config)
    folder, training = find_test_folder(config), _training_folder(config)
    _check_test_folder_exists(config, folder, training)
    if (classes := _classes_if_readable(folder)) is None:
        return
    _check_same_classes(training, class_folders(training), folder, class_folders(folder))
    _check_apart(training, folder, classes)
    for name in classes:
        if not any(is_image(path.name) for path in files_below(folder / name, {})):
            raise no_images(folder / name)


def _check_test_folder_exists(config: DataConfig, folder: Path, training: Path) -> None:
    root = image_root(config)
    if not folder.is_dir():
        field = "data.root" if config.test_folder is None else "data.test_folder"
        raise MissingImages(f"{field}: no test images: {_missing(folder)}; {hint(root)}")
    if training.is_dir() and folder.samefile(training):
        given = config.test_folder is not None
        what = f"data.test_folder: {config.test_folder!r}" if given else f"data.root: the link {str(folder)!r}"
        raise ValueError(f"{what} is not valid: it holds the training images; give a folder of other images")


def open_test_folder(config: DataConfig) -> FileSource:
    """Open the folder of `find_test_folder`. Its classes must be those of `train`."""
    folder = find_test_folder(config)
    _check_test_folder_exists(config, folder, _training_folder(config))
    return _open_beside(config, folder)


def _open_beside(config: DataConfig, folder: Path) -> FileSource:
    """Open a part beside the training folder, which must have the same classes."""
    root, training = image_root(config), _training_folder(config)
    if (folder / ANNOTATIONS).is_file():
        if not training.is_dir():
            raise ValueError(f"data.root: {ANNOTATIONS} needs the class folders of train/: {_missing(training)}")
        return _read_annotated(root, folder, class_folders(training))
    classes = class_folders(folder)
    if training.is_dir():
        _check_same_classes(training, class_folders(training), folder, classes)
        _check_apart(training, folder, classes)
    return collect(root, folder, classes)


def _check_named_test_folder(config: DataConfig) -> None:
    """MissingImages for a `data.test_folder` that is not there, which is why no training folder is looked for."""
    root = image_root(config)
    if config.test_folder is not None and root.is_dir() and not (root / config.test_folder).is_dir():
        raise MissingImages(f"data.test_folder: no test images: {_missing(root / config.test_folder)}; {hint(root)}")


def find_test_folder(config: DataConfig) -> Path:
    """`data.test_folder`, else `test` or what it is called, else `val`."""
    return find_parts(config).test or image_root(config) / "val"


def _training_folder(config: DataConfig) -> Path:
    return find_parts(config).train or image_root(config) / "train"


def _missing(folder: Path) -> str:
    return f"there is no folder {str(folder.absolute())!r}"


def _classes_if_readable(folder: Path) -> list[str] | None:
    """List the class folders; None if that is not possible yet, and the test set is checked when it is opened."""
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK) or (folder / ANNOTATIONS).is_file():
        return None
    return [path.name for path in folders_in(folder)]


def _check_same_classes(training: Path, expected: list[str], folder: Path, found: list[str]) -> None:
    if expected == found:
        return
    if not found:
        rule = "it holds no class folders; give it those of the training images, or remove it"
        raise ValueError(f"data.root: {str(folder)!r} is not valid: {rule}")
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


def _check_apart(training: Path, folder: Path, classes: list[str]) -> None:
    """ValueError for a class folder of a part that is the one of the training images; the part has the same classes."""
    for name in classes:
        first, second = training / name, folder / name
        if first.samefile(second):
            raise ValueError(
                f"data.root: {str(first)!r} and {str(second)!r} are one folder, by a link, and images that are "
                "trained on cannot test or validate it; remove the link, and give images of their own"
            )


def _read_annotated(root: Path, folder: Path, classes: list[str]) -> FileSource:
    """Read Tiny-ImageNet as Stanford publishes it: `val/images/*` with a table of file name, class and box."""
    try:
        lines = (folder / ANNOTATIONS).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"data.root: {folder / ANNOTATIONS} is not text in UTF-8") from error
    rows = [line.split("\t")[:2] for line in lines if line]
    if short := next((number for number, row in enumerate(rows, 1) if len(row) < 2), None):
        raise ValueError(f"data.root: {folder / ANNOTATIONS}: row {short} has no class behind a tab")
    if not rows:
        raise ValueError(f"data.root: {folder / ANNOTATIONS} has no rows")
    unknown = sorted({name for _, name in rows} - set(classes))
    if unknown:
        raise ValueError(f"data.root: {folder / ANNOTATIONS} names classes that train/ does not have: {unknown[:3]}")
    number = {name: label for label, name in enumerate(classes)}
    files = [f"{folder.relative_to(root).as_posix()}/images/{file}" for file, _ in rows]
    labels = torch.tensor([number[name] for _, name in rows], dtype=torch.int64)
    return FileSource(root, files, labels, classes)
