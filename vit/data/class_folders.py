"""One folder of images per class: the classes, their files, and what else lies there."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from vit.config.part_names import part_named
from vit.config.rules import nearest_path
from vit.data.decoding import SUFFIXES, MissingImages
from vit.data.file_source import FileSource
from vit.data.parts import SYSTEM_FOLDERS, folders_in, holds_images, is_image, listed, training_folder_in
from vit.wording import counted

_LAYOUT = "expected {root}/<class>/*.jpg, or {root}/train/<class>/*.jpg and {root}/val/<class>/*.jpg (or test/)"
_SYSTEM_FILES = ("thumbs.db", "desktop.ini")
"""Files that Windows leaves in folders of images; macOS's are hidden ones."""


def class_folders(folder: Path, expected: str = "") -> list[str]:
    """List the class folders, sorted; ValueError if there are none, images next to them, or a name that is not UTF-8.

    `expected` says how the folders should be. Runs that were written beside the classes are left out.
    """
    with os.scandir(folder) as entries:
        stray = sorted(entry.name for entry in entries if is_image(entry.name) and not entry.is_dir())
    classes = [path.name for path in folders_in(folder)]
    for name in classes:
        try:
            name.encode()
        except UnicodeEncodeError as error:  # the system allows any bytes; everything that is written of a run is text
            rule = f"the name of its class folder {name!r} is not valid UTF-8; rename it"
            raise ValueError(f"data.root: {str(folder)!r} is not valid: {rule}") from error
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


def collect(root: Path, folder: Path, classes: list[str]) -> FileSource:
    """All images below the class folders. ValueError for a class without any."""
    files: list[str] = []
    unread: Counter[str] = Counter()
    labels: list[int] = []
    visited: dict[tuple[int, int], str] = {}
    prefix = "" if folder == root else f"{Path(os.path.relpath(folder, root)).as_posix()}/"
    for label, name in enumerate(classes):
        paths = list(files_below(folder / name, visited))
        images = sorted(path.relative_to(folder / name).as_posix() for path in paths if is_image(path.name))
        others = Counter(path.suffix.lower() for path in paths if not is_image(path.name) and not is_system_file(path))
        if not images:
            raise no_images(folder / name, others)
        unread += others
        files += [f"{prefix}{name}/{image}" for image in images]
        labels += [label] * len(images)
    labels_of_files = torch.tensor(labels, dtype=torch.int64)
    return FileSource(root, files, labels_of_files, classes, (*_notes_of_hidden(folder), *notes_of_unread(unread)))


def _notes_of_hidden(folder: Path) -> list[str]:
    """A line that names the hidden folders of images, which could have been meant as classes."""
    hidden = [path for path in sorted(folder.iterdir()) if path.name.startswith(".") and path.is_dir()]
    readable = [path for path in hidden if os.access(path, os.R_OK | os.X_OK)]  # unlike .Trashes on some disks
    named = [f"{path.name}/" for path in readable if any(is_image(file.name) for file in path.iterdir())]
    return [f"not used, being hidden: {listed(named)}"] if named else []


def files_below(folder: Path, visited: dict[tuple[int, int], str], *, twice: bool = False) -> Iterator[Path]:
    """All files below that are not hidden, nor in a hidden folder (editors keep thumbnails and copies there).

    Links to folders are followed; `visited`: folders by device and inode.

    ValueError for a folder that is reached twice, whose images would count twice, in training and test; with `twice`,
    its files are given once. OSError for a folder that cannot be read.
    """
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SYSTEM_FOLDERS)
        status = Path(parent).stat()
        first = visited.setdefault((status.st_dev, status.st_ino), parent)
        if first != parent and twice:
            folders.clear()
            continue
        if first != parent:
            raise ValueError(
                f"data.root: {first!r} and {parent!r} are one folder, by a link, and its images would count twice; "
                "remove the link"
            )
        yield from (Path(parent) / name for name in names if not name.startswith("."))


def _raise(error: OSError) -> None:
    """`os.walk` would skip a folder that cannot be read, and its images would be missing without a word."""
    raise error


def no_images(folder: Path, others: Counter[str] | None = None) -> ValueError:
    """`others`: suffixes of the files that are there."""
    instead = "".join(f", but {said}" for said in _unread(others or Counter()))
    return ValueError(
        f"data.root: class folder {str(folder)!r} holds no images "
        f"({', '.join(sorted(SUFFIXES))}){instead}; add some, or remove it here and in every other part"
    )


def is_system_file(path: Path) -> bool:
    return path.name.lower() in _SYSTEM_FILES


def notes_of_unread(suffixes: Counter[str]) -> list[str]:
    return [f"not read: {said}; JPEG or PNG would be" for said in _unread(suffixes)]


def _unread(suffixes: Counter[str]) -> list[str]:
    """A text about files that are no images by their suffixes, if there are any."""
    ordered = sorted(suffixes.items(), key=lambda item: (-item[1], item[0]))
    said = [(count, f"{suffix} file" if suffix else "file") for suffix, count in ordered]
    texts = [counted(count, noun) + (" without a suffix" if noun == "file" else "") for count, noun in said]
    return [", ".join(texts)] if texts else []


def hint(root: Path) -> str:
    """A folder that `root` could mean: of a similar name, or the one in it that is laid out; else how folders are."""
    if not root.exists() and (near := nearest_path(root)):
        return near
    found = [str(folder) for folder in folders_in(root) if not part_named(folder.name) and _is_laid_out(folder)]
    return f"did you mean --data.root {found[0]}?" if len(found) == 1 else _LAYOUT.format(root=root)


def _is_laid_out(folder: Path) -> bool:
    """Whether a folder holds a training part, or several class folders, with images."""
    train = training_folder_in(folder)
    return sum(map(holds_images, folders_in(train or folder))) >= (1 if train else 2)
