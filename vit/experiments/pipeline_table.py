"""The tables of `vit bench data` and `vit bench epoch` as lines and Markdown. It measures nothing."""

from __future__ import annotations

from typing import Any

from vit.experiments.turns import PEAK_CONVENTIONS, STEP_GFLOP

OURS = "vit"
_OF_LOADING = ("image_size", "batch_size", "augment", "turns", "machine")
_FACTS = {"data": _OF_LOADING, "epoch": ("model", "difference", "precision", "compile", "cuda_graphs", *_OF_LOADING)}
"""What the table says of all rows."""
_COMMON = {
    "images_per_second": "whole batches of a pass over all images / seconds on the wall's clock; median and quartiles",
    "ratios": "ours over the peer's images a second, within a turn; median and quartiles over the turns",
    "processor_ratios": "the same with the time of the process's threads, which other programs on the machine disturb "
    "less; only without workers, whose time is not in it",
    "kept": "all sides hold the decoded images in memory; else every pass decodes the files",
    "on_device": "true: our decoded images lie on the device, and a pass of ours copies no pixels; false: in the CPU's "
    "memory, as the others' do",
}
CONVENTIONS = {
    "data": {"pass": "read, decode, augment, normalise, copy to the device; no model", **_COMMON},
    "epoch": {
        "pass": "load, augment, forward, backward, clip, optimizer, average; no evaluation",
        "difference": "the most by which an answer of timm's model differs from ours with the same weights, relative "
        "to the largest answer; float32, not compiled",
        "gflop": "of a pass over all images: two for each multiply-add of the model's products (ours without those "
        f"that no head reads), {STEP_GFLOP}",
        **PEAK_CONVENTIONS,
        **_COMMON,
    },
}


def line(row: dict[str, Any]) -> str:
    """A row for the terminal."""
    rates, ratios = row["images_per_second"], row["ratios"]
    parts = [f"{OURS} {rates[OURS]['median']:.0f} images/s"]
    parts += [f"{name} {rates[name]['median']:.0f} (ratio {ratios[name]['median']:.2f})" for name in ratios]
    if "share_of_peak" in row:
        parts.append(f"{row['share_of_peak'][OURS]:.0%} of peak")
    return f"{row['workers']} workers: {', '.join(parts)}"


def markdown(result: dict[str, Any]) -> str:
    """The table, and under it what its numbers mean."""
    peers = sorted({name for row in result["rows"] for name in row["ratios"]})
    of_peak = ["of peak", "peak GFLOP/s"] if result["bench"] == "epoch" else []
    header = ["workers", "kept", "on_device", "vit images/s", *of_peak, *(f"{name} images/s | ratio" for name in peers)]
    lines = [f"# vit bench {result['bench']}: {result['dataset']}, {result['images']:,} images", ""]
    lines += [f"| {' | '.join(header)} |", f"|{' --- |' * (4 + len(of_peak) + 2 * len(peers))}"]
    for row in result["rows"]:
        where = [str(row[name]).lower() for name in ("kept", "on_device")]
        cells = [str(row["workers"]), *where, _rate(row["images_per_second"][OURS])]
        if of_peak:
            cells += [f"{row['share_of_peak'][OURS]:.1%}", _rate(row["peak_gflops"])]
        cells += [f"{_rate(row['images_per_second'].get(name))} | {_ratio(row['ratios'].get(name))}" for name in peers]
        lines.append(f"| {' | '.join(cells)} |")
    conventions = result["conventions"]
    names = _FACTS[result["bench"]]
    facts = [f"- {name}: {_fact(result[name])}{_meaning(conventions.get(name))}" for name in names]
    others = [f"- {name}: {what}" for name, what in conventions.items() if name not in names]
    return "\n".join([*lines, "", *facts, *others]) + "\n"


def _meaning(convention: str | None) -> str:
    return "" if convention is None else f" ({convention})"


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_fact(each)}" for name, each in value.items())
    return "×".join(map(str, value)) if isinstance(value, list) else str(value)


def _rate(rate: dict[str, float] | None) -> str:
    return "—" if rate is None else f"{rate['median']:.0f} ({rate['lower']:.0f}–{rate['upper']:.0f})"


def _ratio(ratio: dict[str, float] | None) -> str:
    return "—" if ratio is None else f"{ratio['median']:.2f} ({ratio['lower']:.2f}–{ratio['upper']:.2f})"
