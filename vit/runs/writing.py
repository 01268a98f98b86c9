"""Files that survive a kill and a power cut: whole or not at all, with their names flushed to the disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


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
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Any) -> None:
    """Replace a JSON file in one step (`replace_atomically`)."""
    with replace_atomically(path) as unfinished:
        unfinished.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():  # reading a pipe would wait for ever
        return None
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):  # the last for brackets in thousands of brackets
        return None
    return content if isinstance(content, dict) else None


def write_safetensors(file: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors with the rights of any new file; the library's own are for its user alone.

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


def keep_earlier(
    folder: Path, stem: str, files: Sequence[str], is_same: Callable[[dict[str, Any]], bool]
) -> Path | None:
    """Put the files of an earlier result aside, unless `is_same` says that its `STEM.json` is of the same.

    The folder that has them now, or None. A `.json` that cannot be read is put aside too.
    """
    try:
        if is_same(json.loads((folder / f"{stem}.json").read_text(encoding="utf-8"))):
            return None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        pass  # of an earlier version, or none of ours
    return put_aside(folder, [folder / name for name in files])


def put_aside(folder: Path, files: Iterable[Path]) -> Path:
    """Move files of `folder` into `earlier-1` in it, or the first such number that is free, and return that folder."""
    count = 1
    while (earlier := folder / f"earlier-{count}").exists():
        count += 1
    for file in filter(Path.is_file, files):
        to = earlier / file.relative_to(folder)
        to.parent.mkdir(parents=True, exist_ok=True)
        file.rename(to)
    return earlier
