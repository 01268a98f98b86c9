"""The list of the files that a run is trained on and validated with, which it keeps as `images.csv`.

By it a run can say which of its images are gone or new, and whether it has seen an image even after others were added.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import torch

from vit.data.folders import FileSource
from vit.data.parts import listed
from vit.data.splits import Split

FILE_NAME = "images.csv"
_COLUMNS = ["file", "split"]


def list_images(train: Split, validation: Split) -> str:
    """CSV, relative to the folder of the images; nothing where images are not files."""
    if not isinstance(train.source, FileSource):
        return ""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(_rows(train, validation))
    return text.getvalue()


def _rows(train: Split, validation: Split) -> Iterator[tuple[str, str]]:
    for split, part in ((train, "train"), (validation, "validation")):
        yield from ((split.source.name(index), part) for index in split.indices.tolist())


def list_of(source: Path) -> Path:
    """Where the list of a run is; `source` is its folder or a checkpoint in it. It may not be there."""
    return (source.parent.parent if (source / "state.json").is_file() else source) / FILE_NAME


def read_images(path: Path, root: Path) -> tuple[Split, Split, int]:
    """(train, validation) of the files of a run's list that are still below `root`, and how many are not.

    ValueError for another list.
    """
    parts = _read(path)
    train, validation = (
        _split(root, [file for file, part in parts if part == name]) for name in ("train", "validation")
    )
    return train, validation, len(parts) - len(train) - len(validation)


def changes(path: Path, train: Split, validation: Split) -> str:
    """List in words how files differ from a run's list; nothing where they are the same, or there is no list."""
    if not path.is_file() or not isinstance(train.source, FileSource):
        return ""
    before, now = dict(_read(path)), dict(_rows(train, validation))
    left = before.keys() - now
    gone = {file for file in left if not (train.source.root / file).exists()}
    kinds: tuple[tuple[Collection[str], str], ...] = (
        (gone, "gone"),
        (now.keys() - before, "new here"),
        (left - gone, "no training image any more"),
        ([file for file in before.keys() & now if before[file] != now[file]], "in the other part"),
    )
    return ", ".join(
        f"{listed(sorted(files))} {'is' if len(files) == 1 else 'are'} {what}" for files, what in kinds if files
    )


def _read(path: Path) -> list[tuple[str, str]]:
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = list(csv.reader(file))
    if not rows or rows[0] != _COLUMNS or any(len(row) != len(_COLUMNS) for row in rows):
        raise ValueError(f"{path}: it is no list of a run's images, with the columns {' and '.join(_COLUMNS)}")
    return [(file, part) for file, part in rows[1:]]


def _split(root: Path, files: Sequence[str]) -> Split:
    there = [file for file in files if (root / file).is_file()]
    source = FileSource(root, there, torch.zeros(len(there), dtype=torch.int64), [""])
    return Split(source, torch.arange(len(there)))
