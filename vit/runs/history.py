"""The log of a run: `metrics.jsonl`, a line a step or evaluated epoch, and `summary.json` at its end."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from vit.runs.writing import replace_atomically

log = logging.getLogger(__name__)

HISTORY = "metrics.jsonl"


def append_metrics(run: Path, record: dict[str, Any]) -> None:
    with (run / HISTORY).open("a") as stream:
        stream.write(json.dumps(record) + "\n")


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The logged lines of a run or checkpoint, without damaged ones, such as a last one that a kill left unfinished."""
    path = run / HISTORY
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def restore_metrics(run: Path, step: int, checkpoint: Path | None) -> None:
    """Make the history what it was at `step`, where a run continues from `checkpoint` (None: from the beginning).

    Lines logged later are removed, and lines that are missing or altered come back from the checkpoint's own copy,
    which a warning says. A checkpoint of an older version has no copy: the lines up to its step are kept.
    """
    kept = [record for record in read_metrics(run) if record.get("step", step) <= step]
    if checkpoint is not None and (checkpoint / HISTORY).is_file():
        saved = read_metrics(checkpoint)
        if kept != saved:
            log.warning(
                "%s differs from the copy in %s (%s lines up to step %s, and there %s): restored from it",
                *(run / HISTORY, checkpoint.name, len(kept), step, len(saved)),
            )
        kept = saved
    with replace_atomically(run / HISTORY) as unfinished:
        unfinished.write_text("".join(json.dumps(record) + "\n" for record in kept))


def read_summary(run: Path) -> dict[str, Any]:
    """A run's `summary.json`; empty where it is not finished. ValueError for a file of anything else."""
    path = run / "summary.json"
    try:
        content = json.loads(path.read_text()) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"run: {str(path)!r} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"run: {str(path)!r} holds no results: it must be an object of names and numbers")
    return content
