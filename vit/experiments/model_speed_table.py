"""The table of `vit bench forward` and `vit bench step` as lines, Markdown and JSON. It measures nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vit.experiments.turns import PEAK_CONVENTIONS, STEP_GFLOP
from vit.runs import write_json

_CELLS = "cells"
CONVENTIONS = {
    "images_per_second": "median and quartiles over the turns of images / seconds on the wall's clock",
    "ratios": "ours over the peer's images a second, within a turn; median and quartiles over the turns; where the "
    "machine's speed changes between turns, the medians of images a second may stand the other way round",
    "processor_ratios": "the same with the time of all threads of the process, which other programs disturb less",
    "gflop": f"of a pass of the batch: two for each multiply-add of the products, {STEP_GFLOP}",
    "gflops": "gflop over the median of the seconds",
    "work": "gflop of ours over the peer's: our last block leaves out what the head does not read",
    **PEAK_CONVENTIONS,
    "rows": "may come from different hours and states of this package; the peak says how fast the machine was: images "
    "a second can be compared within a row",
    "step": "forward, cross-entropy, backward, fused AdamW; bf16 by autocast",
    "forward": "inference; ours as for_inference gives it: weights cast once and, where `ways` says so, packed for the "
    "processor, which no peer offers; a peer in bf16 by the faster way in `ways`",
    "differences": "largest difference of a peer's numbers from ours in float32 before the timing, relative to the "
    "largest number; vit-pytorch: of its blocks, from the same tokens; vit: of the answers of what is timed of ours",
    "code": "the first digits of a digest of this package's code: of what is timed and what times "
    "it; older: from before digests were kept",
}
_HEADER = (
    *("pass", "model", "batch", "type", "mode", "ours images/s", "best peer", "its images/s", "ratio"),
    *("work", "of peak", "peak GFLOP/s", "code"),
)


def line(row: dict[str, Any]) -> str:
    """A row for the terminal."""
    kind, model, batch, dtype, mode, ours, best, theirs, ratio, _, share, *_ = _columns(row)
    return f"{kind} {model} batch {batch} {dtype} {mode}: {ours} images/s, {best} {theirs}, ratio {ratio}, peak {share}"


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table, the other peers' ratios, and what it was measured on."""
    lines = ["# Speed of whole models", "", *_table(_HEADER, [_columns(row) for row in rows]), ""]
    lines += ["Ours over each peer, median of the turns (quartiles); — where it has no such model:", ""]
    names = sorted({name for row in rows for name in row["conditions"]["peers"]})
    others = [[" ".join(_columns(row)[:5]), *(_ratio(row["ratios"].get(name)) for name in names)] for row in rows]
    lines += [*_table(("cell", *names), others), ""]
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
    """The folder's finished cells by name. ValueError naming a file that is not one."""
    return {file.stem: _read_cell(file) for file in sorted((folder / _CELLS).glob("*.json"))}


def _read_cell(file: Path) -> dict[str, Any]:
    try:
        row: dict[str, Any] = json.loads(file.read_text())
        _columns(row), row["conditions"]["peers"]
        name = cell_name(row)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"--output: {file} is not a finished cell: remove it, or give another folder") from error
    if name != file.stem:
        raise ValueError(f"--output: {file} holds the cell {name}, which is another: remove it")
    return row


def write_tables(folder: Path) -> None:
    """`table.json` and `table.md` of every cell that is stored in the folder."""
    rows = list(read_cells(folder).values())
    rows.sort(key=lambda row: (row["kind"], row["compiled"], row["dtype"] != "fp32", row["model"], row["batch_size"]))
    write_json(folder / "table.json", {"rows": rows, "conventions": CONVENTIONS})
    (folder / "table.md").write_text(markdown(rows))


def _columns(row: dict[str, Any]) -> tuple[str, ...]:
    best, rates = row["best_peer"], row["images_per_second"]
    of_peer = ("none", "—", "—", "—")
    if best is not None:
        work = row["gflop"]["vit"] / row["gflop"][best]
        of_peer = (best, _rate(rates[best]), _ratio(row["ratios"][best]), f"{work:.0%}")
    mode = "compiled" if row["compiled"] else "eager"
    cell = (row["kind"], row["model"], str(row["batch_size"]), row["dtype"], mode)
    peak = f"{row['share_of_peak']['vit']:.1%}", _rate(row["peak_gflops"]), row.get("code", "older")[:6]
    return (*cell, _rate(rates["vit"]), *of_peer, *peak)


def _rate(rate: dict[str, float]) -> str:
    return f"{rate['median']:.1f} ({rate['lower']:.1f}–{rate['upper']:.1f})"


def _ratio(ratio: dict[str, float] | None) -> str:
    return "—" if ratio is None else f"{ratio['median']:.3f} ({ratio['lower']:.3f}–{ratio['upper']:.3f})"


def _table(header: tuple[str, ...], rows: list[Any]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (header, ("---",) * len(header), *rows)]
