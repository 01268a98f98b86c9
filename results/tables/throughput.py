"""Images per second, beside other libraries and other forms of a model: from `benchmarks/results/`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from results.records import ROOT
from vit.wording import markdown_table

MODELS = ("Ti", "S", "B")


def speed(batch_size: int, *, compiled: bool) -> str:
    """How many times as fast as the closest of the other libraries: rows of pass and type, columns of models."""
    cells = json.loads((ROOT / "benchmarks/results/model_speed.json").read_text())["rows"]
    rows = []
    for dtype, type_name in (("bf16", "bfloat16"), ("fp32", "float32")):
        for kind, pass_name in (("forward", "forward pass"), ("step", "training step")):
            wanted = [
                next(row for row in cells if cell_key(row) == (kind, model, batch_size, dtype, compiled))
                for model in MODELS
            ]
            ratios = [f"{row['ratios'][row['best_peer']]['median']:.2f}" for row in wanted]
            rates = [f"{row['images_per_second']['vit']['median']:.3g}" for row in wanted]
            shares = [f"{row['share_of_peak']['vit']:.0%}" for row in wanted]
            rows.append((f"{type_name}, {pass_name}", *ratios, ", ".join(rates), ", ".join(shares)))
    header = (f"batch {batch_size}", *(f"ViT-{name}/16" for name in MODELS), "images/s", "share of the peak")
    return markdown_table(header, rows)


def eight_bits(*files: str, others: Sequence[str] = ()) -> str:
    """int8 over other sides (default: all): rows of models and batch sizes."""
    (ours,) = {json.loads((ROOT / file).read_text()).get("ours", "vit int8 compiled") for file in files}
    found = _models_and_batches(files)
    return _over(found, ours, "times_as_fast", others or list(found[0]["times_as_fast"]))


def compiled_files(*files: str) -> str:
    """The compiled file in float32 over other sides in float32: rows of models and batch sizes."""
    found = _models_and_batches(files)
    others = [name for name in found[0]["float_times_as_fast"] if "bf16" not in name]
    return _over(found, "vit fp32 ahead", "float_times_as_fast", others, rounds=False)


def compiled_bfloat16(*files: str) -> str:
    """The compiled file in bfloat16 over other sides, by medians of images/s: rows of models and batch sizes."""
    sides = ("vit bf16 ahead", "vit bf16", "vit bf16 compiled")
    rows = []
    for row in _models_and_batches(files):
        first, *others = (row["images_per_second"][side]["median"] for side in sides)
        over = (f"{first / other:.2f}" for other in (*others, row["images_per_second"]["vit fp32 ahead"]["median"]))
        rows.append((f"ViT-{row['model']}/16, {row['batch_size']}", f"{first:.1f}", *over))
    header = ("model, images at once", "images/s", *(f"over {side}" for side in (*sides[1:], "vit fp32 ahead")))
    return markdown_table(header, rows)


def _models_and_batches(files: Sequence[str]) -> list[dict[str, Any]]:
    """Rows in the order of the tables; of a model and batch size that several files hold, that of the last one."""
    rows = [row for file in files for row in json.loads((ROOT / file).read_text())["rows"]]
    last = {(MODELS.index(row["model"]), row["batch_size"]): row for row in rows}
    return [last[key] for key in sorted(last)]


def _over(
    found: Sequence[Mapping[str, Any]], ours: str, ratios: str, others: Sequence[str], *, rounds: bool = True
) -> str:
    """`rounds`: the side's logits are others, and their change has a column."""
    rows = []
    for row in found:
        rate = row["images_per_second"][ours]["median"]
        over = [f"{row[ratios][name]['median']:.2f}" if name in row[ratios] else "–" for name in others]
        change = [f"{row['change'][ours]:.1%}"] * rounds
        rows.append((f"ViT-{row['model']}/16, {row['batch_size']}", f"{rate:.1f}", *over, *change))
    header = ("model, images at once", "images/s", *(f"over {name}" for name in others))
    return markdown_table((*header, *["change of the logits"] * rounds), rows)


def every_cell(file: str) -> str:
    """A row for each cell of a measurement of whole models: images/s, over the best library, share of the peak."""
    rows = []
    for row in json.loads((ROOT / file).read_text())["rows"]:
        what = f"{'forward pass' if row['kind'] == 'forward' else 'training step'}, {row['batch_size']}"
        rate, ratio = row["images_per_second"]["vit"]["median"], row["ratios"][row["best_peer"]]
        over = f"{ratio['median']:.2f} ({ratio['lower']:.2f} to {ratio['upper']:.2f})"
        rows.append((f"ViT-{row['model']}/16", what, f"{rate:,.0f}", over, f"{row['share_of_peak']['vit']:.0%}"))
    header = ("model", "images at once", "images/s", "over the best other library (quartiles)", "share of the peak")
    return markdown_table(header, rows)


def attention_on_device(file: str) -> str:
    """Milliseconds of attention forward, and with gradients: rows of masks and tokens, columns of backends."""
    found = {
        (row["mask"], row["tokens"], row["backend"]): f"{row['forward_ms']:.2f}, {row['step_ms']:.1f}"
        for row in json.loads((ROOT / file).read_text())["rows"]
    }
    backends = list(dict.fromkeys(backend for *_, backend in found))
    rows = [
        (mask, f"{tokens:,}", *(found[mask, tokens, backend] for backend in backends))
        for mask, tokens in dict.fromkeys(key[:2] for key in found)
    ]
    return markdown_table(("mask", "tokens", *(f"`{backend}`" for backend in backends)), rows)


def behind(file: str) -> str:
    """In how many cells of a measurement of whole models another library is ahead, and by how much at most."""
    cells = json.loads((ROOT / file).read_text())["rows"]
    gaps = [1 - row["ratios"][row["best_peer"]]["median"] for row in cells]
    count = sum(gap > 0 for gap in gaps)
    return f"{count} of {len(cells)} cells" + (f", by up to {max(gaps):.2f}" if count else "")


def cell_key(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[key] for key in ("kind", "model", "batch_size", "dtype", "compiled"))
