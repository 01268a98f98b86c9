"""Images without classes: single files, and all images below folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from vit.config import check
from vit.data.archives import is_archive
from vit.data.class_folders import files_below, is_system_file, notes_of_unread
from vit.data.file_source import FileSource
from vit.data.parts import is_image


def open_unlabelled(paths: Sequence[str]) -> FileSource:
    """Open image files, and all images below folders, each once, with the single class ''.

    ValueError where there are none, and for archives.
    """
    files: list[str] = []
    notes: list[str] = []
    for path in map(Path, paths):
        archive = is_archive(path) and path.is_file()
        check(not archive, "--data", str(path), "it is an archive; unpack it first, and give its folder")
        if path.is_dir():
            images, unread = images_below(path)
            check(bool(images), "--data", str(path), "; ".join(["the folder holds no images", *unread]))
            files += map(str, images)
            notes += unread
        else:
            check(path.is_file(), "--data", str(path), "it is not a file, a folder or the name of a data set")
            files.append(str(path))
    files = list(dict.fromkeys(files))
    if not files:
        raise ValueError("--data: required: no model is a training run; give a data set's name, a folder or images")
    return FileSource(Path(), files, torch.zeros(len(files), dtype=torch.int64), [""], tuple(notes))


def images_below(folder: Path) -> tuple[list[Path], list[str]]:
    """All images below a folder, sorted, and a line about the other files, if there are any."""
    paths = list(files_below(folder, {}, twice=True))
    others = Counter(path.suffix.lower() for path in paths if not is_image(path.name) and not is_system_file(path))
    return sorted(path for path in paths if is_image(path.name)), notes_of_unread(others)
