"""Files of an earlier result, put aside before a new one is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any


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
