"""Writing files so that they survive a kill and a power cut: whole or not at all, their names flushed to the disk."""

from __future__ import annotations

import csv
import ctypes
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

_HERE = -100
"""AT_FDCWD: names are relative to the working folder."""
_RENAME_EXCHANGE = 2


@contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """A path beside `path` for a new file, which replaces `path` in one step at the end of the block.

    A reader sees the old file or the whole new one, after a power cut too. After an error there is only the old one.
    """
    unfinished = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        yield unfinished
        flush(unfinished)
        unfinished.replace(path)
        flush(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def exchange(new: Path, old: Path) -> Path:
    """Give the folder `new` the name of the folder `old`; return where the old one is now.

    In one step where the system has one (Linux's renameat2); otherwise a kill between two steps leaves both folders
    under other names.
    """
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is not None and renameat2(_HERE, os.fsencode(new), _HERE, os.fsencode(old), _RENAME_EXCHANGE) == 0:
        return new
    aside = old.rename(old.with_name(f".removing-{old.name}-{os.getpid()}"))
    new.rename(old)
    return aside


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing, so that they survive a power cut."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        flush(folder.parent)


def flush_tree(folder: Path) -> None:
    """Flush every file and folder in `folder` to the disk."""
    for parent, _, names in os.walk(folder):
        files = [file for file in (Path(parent, name) for name in names) if file.is_file() and not file.is_symlink()]
        for path in (*files, Path(parent)):
            flush(path)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Any) -> None:
    """Replace a JSON file in one step (`replace_atomically`)."""
    with replace_atomically(path) as unfinished:
        unfinished.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_csv_rows(stream: TextIO, rows: Iterable[Sequence[object]]) -> None:
    """Write rows as CSV that ends lines with a line feed alone.

    Before Python 3.13, csv quotes a carriage return only if lines end with it, and could not read the others back.
    """
    plain = csv.writer(stream, lineterminator="\n")
    quoted = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        (quoted if any("\r" in str(cell) for cell in row) else plain).writerow(row)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace a CSV file in one step: a column for every name in any of the rows; missing values are empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with replace_atomically(path) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(rows)


def write_safetensors(file: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors with the rights of any new file; the library's own are for its user alone. Nothing is flushed.

    Its error for a full disk becomes an OSError.
    """
    plain = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    file.touch()
    rights = file.stat().st_mode
    try:
        save_file(plain, file, metadata)
    except SafetensorError as error:
        raise OSError(f"{file}: {error}") from error
    file.chmod(rights)
