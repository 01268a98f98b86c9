"""Table of the benchmarks `forward` and `step` as lines, Markdown and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.timing import PEAK_CONVENTIONS, STEP_GFLOP, format_quartiles
from vit.runs import write_json
from vit.wording import markdown_table

_CELLS = "cells"
CONVENTIONS = {
    "images_per_second": "median and quartiles over the turns of images / seconds of wall time",
    "ratios": "ours over the peer's images/s, within a turn; median and quartiles over the turns; if the "
    "machine's speed changes between turns, the medians of images/s may disagree",
    "processor_ratios": "the same in processor time of all threads, which other programs disturb less",
    "gflop": f"one pass of the batch: two for each multiply-add of the products, {STEP_GFLOP}",
    "gflops": "gflop over the median of the seconds",
    "work": "gflop of ours over the peer's: our last block skips tokens that the head does not use",
    **PEAK_CONVENTIONS,
    "rows": "may be measured at different times and with different code of this package; the peak shows how fast the "
    "machine was; images/s can be compared within a row",
    "step": "forward, cross-entropy, backward, fused AdamW; bf16 by autocast",
    "forward": "inference; ours by for_inference: weights cast once and, if `ways` says so, packed for the "
    "processor, which no peer offers; a peer in bf16 by the faster way in `ways`",
    "differences": "largest difference of a peer's logits from ours in float32 before the timing, relative to the "
    "largest; vit-pytorch: outputs of its blocks, from the same tokens; vit: logits of our timed copy",
    "code": "first digits of a digest of the timed code of this package and of the timing; older: measured before "
    "digests were kept",
}
_HEADER = (
    *("pass", "model", "batch", "type", "mode", "ours images/s", "best peer", "its images/s", "ratio"),
    *("work", "of peak", "peak GFLOP/s", "code"),
)


def line(row: dict[str, Any]) -> str:
    """Format a row for the terminal."""
    kind, model, batch, dtype, mode, ours, best, theirs, ratio, _, share, *_ = _columns(row)
    return f"{kind} {model} batch {batch} {dtype} {mode}: {ours} images/s, {best} {theirs}, ratio {ratio}, peak {share}"


def markdown(rows: list[dict[str, Any]]) -> str:
    """Format the table, the other peers' ratios, and the conditions of the measurement."""
    lines = ["# Speed of whole models", "", markdown_table(_HEADER, map(_columns, rows)), ""]
    lines += ["Ours over each peer, median of the turns (quartiles); — if it has no such model:", ""]
    names = sorted({name for row in rows for name in row["conditions"]["peers"]})
    others = [
        [" ".join(_columns(row)[:5]), *(format_quartiles(row["ratios"].get(name), 3) for name in names)] for row in rows
    ]
    lines += [markdown_table(("cell", *names), others), ""]
    lines += [f"- {name}: {meaning}" for name, meaning in CONVENTIONS.items()]
    measured: dict[str, list[str]] = {}
    for row in rows:
        measured.setdefault(json.dumps(row["conditions"], sort_keys=True), []).append(cell_name(row))
    for conditions, cells in measured.items():
        lines += ["", f"`{conditions}`" + (f": {', '.join(cells)}" if len(measured) > 1 else "")]
    return "\n".join(lines) + "\n"


def cell_name(row: dict[str, Any]) -> str:
    mode = "compiled" if row["compiled"] else "eager"
    return f"{row['kind']}_{row['model']}_{row['batch_size']}_{row['dtype']}_{mode}"


def cell_file(folder: Path, name: str) -> Path:
    return folder / _CELLS / f"{name}.json"


def read_cells(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the folder's finished cells by name. ValueError naming a file that is not one."""
    return {file.stem: _read_cell(file) for file in sorted((folder / _CELLS).glob("*.json"))}


def _read_cell(file: Path) -> dict[str, Any]:
    try:
        row: dict[str, Any] = json.loads(file.read_text())
        _columns(row), row["conditions"]["peers"]
        name = cell_name(row)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"--output: {file} is not a finished cell: remove it, or give another folder") from error
    if name != file.stem:
        raise ValueError(f"--output: {file} contains another cell, {name}: remove it")
    return row


def write_tables(folder: Path) -> None:
    """Write `table.json` and `table.md` with all cells stored in the folder."""
    rows = list(read_cells(folder).values())
    rows.sort(key=lambda row: (row["kind"], row["compiled"], row["dtype"] != "fp32", row["model"], row["batch_size"]))
    write_json(folder / "table.json", {"rows": rows, "conventions": CONVENTIONS})
    (folder / "table.md").write_text(markdown(rows))


def _columns(row: dict[str, Any]) -> tuple[str, ...]:
    best, rates = row["best_peer"], row["images_per_second"]
    of_peer = ("none", "—", "—", "—")
    if best is not None:
        work = row["gflop"]["vit"] / row["gflop"][best]
        of_peer = (best, format_quartiles(rates[best], 1), format_quartiles(row["ratios"][best], 3), f"{work:.0%}")
    mode = "compiled" if row["compiled"] else "eager"
    cell = (row["kind"], row["model"], str(row["batch_size"]), row["dtype"], mode)
    share, code = f"{row['share_of_peak']['vit']:.1%}", row.get("code", "older")[:6]
    return (*cell, format_quartiles(rates["vit"], 1), *of_peer, share, format_quartiles(row["peak_gflops"], 1), code)
