"""Two runs beside each other: the settings and results in which they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vit.config import RunConfig
from vit.config.validation import flatten
from vit.settings.files import DEFAULT, flat_settings, read_run_config


def differences(first: RunConfig, second: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted name → both values, for the settings that differ."""
    ours, theirs = flat_settings(first), flat_settings(second)
    keys = dict.fromkeys((*ours, *theirs))  # tasks have different settings
    return {key: (ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)}


def diff_runs(first: Path, second: Path) -> str:
    """A table of the settings (with their origins) and the results in which two run folders differ."""
    from vit.runs import read_summary  # which imports torch

    for run in (first, second):
        if not (run / "config.yaml").is_file():
            raise ValueError(f"run: {str(run)!r} is not a run folder (it has no config.yaml)")
    (ours, our_origins), (theirs, their_origins) = (read_run_config(run / "config.yaml") for run in (first, second))
    rows = [
        (key, f"{a}  ({our_origins.get(key, DEFAULT)})", f"{b}  ({their_origins.get(key, DEFAULT)})")
        for key, (a, b) in differences(ours, theirs).items()
    ]
    results: list[dict[str, Any]] = [{}, {}]
    for run, result in zip((first, second), results, strict=True):
        result |= flatten(read_summary(run))
    for key in results[0] | results[1]:
        a, b = (result.get(key, "–") for result in results)
        if a != b:
            rows.append((key, str(a), str(b)))
    table = [("", str(first), str(second)), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(2)]
    return "\n".join(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}".rstrip() for row in table)
