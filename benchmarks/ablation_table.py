"""The rows of an ablation as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from vit.wording import markdown_table


def table(result: Mapping[str, Any]) -> str:
    """Markdown: a row for each variant, with its mean accuracy and what its ingredient brings.

    Of the seeds that the effects are of, so that all rows have the same; of all runs while there are no effects.
    """
    seeds = {seed for effect in result["effects"] for seed in effect["seeds"]}
    by_variant: dict[str, list[Mapping[str, Any]]] = {}
    for row in result["runs"]:
        if not seeds or row["seed"] in seeds:
            by_variant.setdefault(row["variant"], []).append(row)
    told = {effect["variant"]: effect for effect in result["effects"]}
    lines = []
    for name, rows in by_variant.items():
        lines.append((name, str(rows[0]["epochs"]), _accuracy(rows), _brings(told.get(name))))
    return markdown_table(("variant", "epochs", "test top-1", "the ingredient brings"), lines)


def _accuracy(rows: Sequence[Mapping[str, Any]]) -> str:
    """The mean of a variant's runs, unless one has diverged: those left would be the ones that went well."""
    diverged = [str(row["seed"]) for row in rows if row["test.top1"] is None]
    if diverged:
        return f"loss not finite with seed {', '.join(diverged)}"
    values = [100 * row["test.top1"] for row in rows]
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread} %"


def _brings(effect: Mapping[str, Any] | None) -> str:
    if effect is None:
        return ""
    points = f"{100 * effect['effect']:+.2f} points"
    if "interval" not in effect:
        return points
    low, high = effect["interval"]
    return f"{points} ({100 * low:+.1f} to {100 * high:+.1f})"
