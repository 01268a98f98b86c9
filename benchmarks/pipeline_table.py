"""Tables of the benchmarks `data` and `epoch` as lines and Markdown."""

from __future__ import annotations

from typing import Any

from benchmarks.timing import PEAK_CONVENTIONS, STEP_GFLOP, format_quartiles
from vit.wording import markdown_table

OURS = "vit"
_LOADING_FACTS = ("image_size", "batch_size", "augment", "turns", "machine")
_FACTS = {
    "data": _LOADING_FACTS,
    "epoch": ("model", "difference", "precision", "compile", "cuda_graphs", *_LOADING_FACTS),
}
"""Facts that hold for all rows of a table."""
_COMMON = {
    "images_per_second": "whole batches of a pass over all images / seconds of wall time; median and quartiles",
    "ratios": "ours over the peer's images/s, within a turn; median and quartiles over the turns",
    "processor_ratios": "the same in processor time of the process, which other programs disturb less; only without "
    "workers, whose time it does not include",
    "kept": "all loaders keep the decoded images in memory; else every pass decodes the files",
    "on_device": "true: our decoded images are on the device, so that ours copies no pixels; false: in the CPU's "
    "memory, like the others'",
}
CONVENTIONS = {
    "data": {"pass": "read, decode, augment, normalise, copy to the device; no model", **_COMMON},
    "epoch": {
        "pass": "load, augment, forward, backward, clip, optimizer, average; no evaluation",
        "difference": "largest difference of timm's logits from ours with the same weights, relative to the largest "
        "logit; float32, not compiled",
        "gflop": "one pass over all images: two for each multiply-add of the model's products (ours without tokens "
        f"that the head does not use), {STEP_GFLOP}",
        **PEAK_CONVENTIONS,
        **_COMMON,
    },
}


def line(row: dict[str, Any]) -> str:
    """Format a row for the terminal."""
    rates, ratios = row["images_per_second"], row["ratios"]
    parts = [f"{OURS} {rates[OURS]['median']:.0f} images/s"]
    parts += [f"{name} {rates[name]['median']:.0f} (ratio {ratios[name]['median']:.2f})" for name in ratios]
    if "share_of_peak" in row:
        parts.append(f"{row['share_of_peak'][OURS]:.0%} of peak")
    return f"{row['workers']} workers: {', '.join(parts)}"


def markdown(result: dict[str, Any]) -> str:
    """Format the table, followed by the meaning of its numbers."""
    peers = sorted({name for row in result["rows"] for name in row["ratios"]})
    of_peak = ["of peak", "peak GFLOP/s"] if result["bench"] == "epoch" else []
    header = [
        "workers",
        "kept",
        "on_device",
        "vit images/s",
        *of_peak,
        *(head for name in peers for head in (f"{name} images/s", "ratio")),
    ]
    lines = []
    for row in result["rows"]:
        where = [str(row[name]).lower() for name in ("kept", "on_device")]
        cells = [str(row["workers"]), *where, format_quartiles(row["images_per_second"][OURS], 0)]
        if of_peak:
            cells += [f"{row['share_of_peak'][OURS]:.1%}", format_quartiles(row["peak_gflops"], 0)]
        for name in peers:
            cells.append(format_quartiles(row["images_per_second"].get(name), 0))
            cells.append(format_quartiles(row["ratios"].get(name), 2))
        lines.append(cells)
    title = f"# {result['bench']}: {result['dataset']}, {result['images']:,} images"
    conventions = result["conventions"]
    names = _FACTS[result["bench"]]
    facts = [
        f"- {name}: {_fact(result[name])}" + (f" ({conventions[name]})" if name in conventions else "")
        for name in names
    ]
    others = [f"- {name}: {what}" for name, what in conventions.items() if name not in names]
    return "\n".join([title, "", markdown_table(header, lines), "", *facts, *others]) + "\n"


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_fact(each)}" for name, each in value.items())
    return "×".join(map(str, value)) if isinstance(value, list) else str(value)
