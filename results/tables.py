"""Tables of the documents, as Markdown, from the records and from the benchmarks' results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from results.records import RESULTS, ROOT, percent, read_records

MODELS = ("Ti", "S", "B")


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def trained(names: Sequence[str]) -> str:
    """A row for each configuration: accuracy over its seeds and what it cost."""
    rows = []
    for name in names:
        records = read_records(name)
        summary = records[0].summary
        top1 = percent([record.summary["test.top1"] for record in records])
        cost = f"{summary['params'] / 1e6:.2f} M", f"{summary['gmacs'] * 1000:.1f} M"
        seen = f"{summary['epochs']} × {summary['images_seen'] // summary['epochs']:,}"
        rows.append((f"`{name}`", top1, str(len(records)), *cost, seen, summary["precision"]))
    header = ("record", "test top-1", "seeds", "parameters", "multiply-adds", "images seen", "precision")
    return markdown(header, rows)


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
    return markdown(header, rows)


def behind(file: str) -> str:
    """In how many cells of a measurement of whole models another library is ahead, and by how much at most."""
    cells = json.loads((ROOT / file).read_text())["rows"]
    gaps = [1 - row["ratios"][row["best_peer"]]["median"] for row in cells]
    count = sum(gap > 0 for gap in gaps)
    return f"{count} of {len(cells)} cells" + (f", by up to {max(gaps):.2f}" if count else "")


def cell_key(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[key] for key in ("kind", "model", "batch_size", "dtype", "compiled"))


def frozen(file: str, features: str = "head") -> str:
    """A row for each model: the accuracies of its frozen features by protocol, and what the features cost.

    `file`: the `transfer.json` of `vit compare --transfer`, in `results/`.
    """
    result = json.loads((RESULTS / file).read_text())
    accuracies = result["features"][features]["accuracies"]
    shots = [name for name in accuracies if name.startswith("few_shot_")]
    rows = []
    for model in result["models"]:
        found = {protocol: values[model["name"]] for protocol, values in accuracies.items()}
        low, high = found["linear_probe"]["interval"]
        rows.append(
            (
                model["name"],
                percent([found["knn"]["accuracy"]]),
                ", ".join(f"{100 * found[name]['accuracy']:.1f}" for name in shots) + " %",
                f"{percent([found['linear_probe']['accuracy']])} ({100 * low:.1f} to {100 * high:.1f})",
                f"{model['gmacs']:.3f} G",
                f"{model['params'] / 1e6:.2f} M",
            )
        )
    counts = ", ".join(name.removeprefix("few_shot_") for name in shots)
    header = ("model", "k-NN", f"{counts} images a class", "linear probe", "multiply-adds", "parameters")
    return markdown(header, rows)


def compared(file: str) -> str:
    """A row for each model with a head: its accuracy with its 95 % interval, how it was trained, and its cost.

    `file`: the `comparison.json` of `vit compare`, in `results/`.
    """
    rows = []
    for model in json.loads((RESULTS / file).read_text())["models"]:
        low, high = model["top1_interval"]
        top1 = f"{percent([model['top1']])} ({100 * low:.1f} to {100 * high:.1f})"
        facts = model["provenance"]
        cost = f"{model['gmacs']:.3f} G", f"{model['params'] / 1e6:.2f} M"
        rows.append((model["name"], top1, facts["trained on"], facts["recipe"], facts["image size"], *cost))
    header = ("model", "test top-1", "trained on", "recipe", "images", "multiply-adds", "parameters")
    return markdown(header, rows)


def differences(file: str) -> str:
    """A row for each pair of models with heads: the paired difference of accuracy, 95 % interval, and p (Holm)."""
    rows = []
    for pair in json.loads((RESULTS / file).read_text())["pairs"]:
        low, high = (100 * end for end in pair["top1_interval"])
        difference = f"{100 * pair['top1_difference']:+.1f} ({low:+.1f} to {high:+.1f})"
        rows.append((pair["first"], pair["second"], difference, f"{pair['p_holm']:.1g}"))
    return markdown(("first", "second", "points ahead (95 % interval)", "p (Holm)"), rows)


def memory() -> str:
    """A row for each command on what is large: its peak, and the bound that a slow test holds it to."""
    rows = []
    for row in json.loads((RESULTS / "memory.json").read_text())["large"].values():
        rows.append((row["title"], f"{row['peak']:,} MiB", f"{row['bound']:,} MiB", row["rule"]))
    return markdown(("command", "peak", "bound", "grows with"), rows)


def freed_memory() -> str:
    """A row for each command: its peak with freed memory kept and returned to the system, every turn."""
    rows = []
    for row in json.loads((RESULTS / "memory.json").read_text())["repeated"].values():
        peaks = [", ".join(f"{peak:,}" for peak in row["peaks"][way]) + " MiB" for way in ("kept", "returned")]
        rows.append((row["title"], *peaks, f"{row['peak_ratio']:.2f}"))
    return markdown(("command", "peak, kept", "peak, returned", "kept over returned"), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "trained": lambda: trained(
        (
            *("digits_vit", "digits_resnet", "cifar10_full/vit_small_cpu", "cifar10_full/resnet_small_cpu"),
            "cifar10_full/vit_small_cpu_growing",
            *("cifar10_full/finetuned/dinov2", "cifar10_full/finetuned/resnet56-4bfd9763"),
        )
    ),
    "cifar10-frozen": lambda: frozen("cifar10_full/transfer.json"),
    "tiny-imagenet-frozen": lambda: frozen("tiny_imagenet_transfer.json"),
    "cifar10-compared": lambda: compared("cifar10_full/comparison.json"),
    "cifar10-differences": lambda: differences("cifar10_full/comparison.json"),
    "memory": memory,
    "freed-memory": freed_memory,
    "speed": lambda: speed(8, compiled=False),
    "speed-compiled": lambda: speed(8, compiled=True),
    "speed-one-image": lambda: speed(1, compiled=False),
    "speed-one-image-compiled": lambda: speed(1, compiled=True),
}
