"""Memory on what is large, and what becomes of malformed input."""

from __future__ import annotations

import json

from results.records import RESULTS
from vit.wording import markdown_table


def memory() -> str:
    """A row for each command on what is large: its peak, and the bound that a slow test holds it to."""
    rows = []
    for row in json.loads((RESULTS / "memory.json").read_text())["large"].values():
        rows.append((row["title"], f"{row['peak']:,} MiB", f"{row['bound']:,} MiB", row["rule"]))
    return markdown_table(("command", "peak", "bound", "grows with"), rows)


def malformed() -> str:
    """A row for each kind of malformed input: how many were tried, and how they ended."""
    rows = []
    for kind, found in json.loads((RESULTS / "malformed.json").read_text()).items():
        rows.append((kind, *(f"{found[name]:,}" for name in ("tried", "one line", "taken", "failures"))))
    return markdown_table(("kind", "tried", "one line", "valid after all", "failures"), rows)


def freed_memory() -> str:
    """A row for each command: its peak with freed memory kept and returned to the system, every turn."""
    rows = []
    for row in json.loads((RESULTS / "memory.json").read_text())["repeated"].values():
        peaks = [", ".join(f"{peak:,}" for peak in row["peaks"][way]) + " MiB" for way in ("kept", "returned")]
        rows.append((row["title"], *peaks, f"{row['peak_ratio']:.2f}"))
    return markdown_table(("command", "peak, kept", "peak, returned", "kept over returned"), rows)
