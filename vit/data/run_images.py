"""The list of the files that a run is trained on, validated and, at its end, tested with: `images.csv`.

By it a run can say which of its images are gone, new or replaced, and whether it has seen an image, wherever its own
are now.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vit.data.file_source import FileSource
from vit.data.identity import file_identities, paths_of
from vit.data.parts import listed
from vit.data.splits import Split
from vit.runs import replace_atomically, write_csv_rows

FILE_NAME = "images.csv"
MOST_IDENTIFIED = 200_000
"""Files of larger sets are listed by name alone: reading a part of every one of them would delay the training."""
_COLUMNS = ["file", "split", "identity"]
_COLUMNS_BEFORE = ["file", "split"]
"""Columns of the files that earlier versions wrote."""


@dataclass(frozen=True)
class RunImage:
    part: str
    """`train`, `validation` or `test`."""
    identity: str
    """As `identity.file_identities`; empty where it is not known."""


RunImages = dict[str, RunImage]
"""By the file's name, relative to the folder of the images."""


def list_images(train: Split, validation: Split) -> RunImages:
    """Identify the files of both parts; nothing where images are not files."""
    few = len(train) + len(validation) <= MOST_IDENTIFIED
    return _identified(train, "train", few=few) | _identified(validation, "validation", few=few)


def name_images(train: Split, validation: Split) -> RunImages:
    """As `list_images`, without identities; no file is read."""
    return _identified(train, "train", few=False) | _identified(validation, "validation", few=False)


def names_digest(images: RunImages) -> str:
    """32 hexadecimal digits of the names of the training and validation images; empty where there are none."""
    rows = sorted(f"{image.part}\t{file}\n" for file, image in without_test(images).items())
    if not rows:
        return ""
    return hashlib.blake2b("".join(rows).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def with_test(images: RunImages, test: Split) -> RunImages:
    """The list of a run that has ended, with its test images."""
    return without_test(images) | _identified(test, "test", few=len(test) <= MOST_IDENTIFIED)


def without_test(images: RunImages) -> RunImages:
    """The training and validation images of a list."""
    return {file: image for file, image in images.items() if image.part != "test"}


def _identified(split: Split, part: str, *, few: bool) -> RunImages:
    paths = paths_of(split)
    names = [split.source.name(index) for index in split.indices.tolist()] if paths else []
    identities = file_identities(paths, f"{part} images") if few and paths else [""] * len(paths)
    return {name: RunImage(part, identity) for name, identity in zip(names, identities, strict=True)}


def write_images(path: Path, images: RunImages) -> None:
    """Write a run's list."""
    with replace_atomically(path) as unfinished:
        unfinished.write_text(_as_csv(images), encoding="utf-8", errors="surrogateescape")


def _as_csv(images: RunImages) -> str:
    text = io.StringIO()
    write_csv_rows(text, [_COLUMNS, *((file, image.part, image.identity) for file, image in images.items())])
    return text.getvalue()


def image_list_path(source: Path) -> Path:
    """Where the list of a run is; `source` is its folder or a checkpoint in it. It may not be there."""
    return (source.parent.parent if (source / "state.json").is_file() else source) / FILE_NAME


def read_images(path: Path) -> RunImages:
    """Read a run's list. ValueError for another file."""
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        try:
            columns, *rows = [*csv.reader(file)] or [[]]
        except csv.Error:
            columns, rows = [], []
    if columns not in (_COLUMNS, _COLUMNS_BEFORE) or any(len(row) != len(columns) for row in rows):
        raise ValueError(f"{path}: it is no list of a run's images, with the columns {', '.join(_COLUMNS)}")
    return {file: RunImage(part, identity[0] if identity else "") for file, part, *identity in rows}


def images_there(images: RunImages, root: Path) -> tuple[Split, Split]:
    """(train, validation) of the listed files that are still below `root`."""
    train, validation = (
        _split(root, [file for file, image in images.items() if image.part == part]) for part in ("train", "validation")
    )
    return train, validation


def forget_identity(images: RunImages, file: str) -> RunImages:
    """The list without the identity of a file, which may be replaced then."""
    return images | {file: replace(images[file], identity="")} if file in images else images


def changes(before: RunImages, now: RunImages, root: Path) -> str:
    """List in words how files differ from those of a run; nothing where they are the same."""
    left = before.keys() - now
    gone = {file for file in left if not (root / file).exists()}
    both = before.keys() & now
    kinds: tuple[tuple[Collection[str], str], ...] = (
        (gone, "gone"),
        (now.keys() - before, "new here"),
        (left - gone, "no training image any more"),
        ([file for file in both if before[file].part != now[file].part], "in the other part"),
        (
            [file for file in both if _is_other(before[file].identity, now[file].identity)],
            "another image now, or damaged",
        ),
    )
    return ", ".join(
        f"{listed(sorted(files))} {'is' if len(files) == 1 else 'are'} {what}" for files, what in kinds if files
    )


def _is_other(before: str, now: str) -> bool:
    return bool(before and now) and before != now


def _split(root: Path, files: Sequence[str]) -> Split:
    there = [file for file in files if (root / file).is_file()]
    source = FileSource(root, there, torch.zeros(len(there), dtype=torch.int64), [""])
    return Split(source, torch.arange(len(there)))
