"""Growth of a Vision Transformer's cost: time and memory against tokens, batch and depth, and speed by processes.

One quantity varies at a time, the others stay at a middle value. Times are interleaved; memory is that of live tensors
besides the weights, in a pass of its own. The processes train a small model on synthetic images, sharing the cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.growth_figure import growth
from benchmarks.timing import (
    PEAK,
    PEAK_CONVENTIONS,
    STEP_GFLOP,
    STEP_PASSES,
    ProgressFn,
    compare_with_peak,
    format_number,
    format_quartiles,
    matrix_product,
    quartiles,
    time_interleaved,
)
from vit.config import check, check_positive
from vit.evaluation.cost import multiply_adds
from vit.evaluation.memory import TENSOR_METER, peak_memory_of, weight_storages
from vit.figures.style import save_figure
from vit.hub import create_model
from vit.processor import machine

PATCH, WIDTH, HEADS, CLASSES = 16, 192, 3, 1000
TOKENS = (64, 144, 256, 576, 1024, 2304, 4096)
BATCHES = (1, 2, 4, 8, 16, 32)
DEPTHS = (1, 2, 4, 8, 16, 24)
_SHARED = 128
"""Images per step, shared among the processes."""
_FITTED = 3
_SHORTEST = 0.1
CONVENTIONS = {
    "model": f"patches of {PATCH}, width {WIDTH}, {HEADS} heads, {CLASSES} classes, no class token",
    "forward": "inference",
    "step": "forward, cross-entropy, backward, fused AdamW",
    "seconds": "one pass; median and quartiles of the turns",
    "bytes": f"peak besides the weights: {TENSOR_METER}; of steps the second one, when AdamW has its moments",
    "gflop": f"one pass of the batch: two for each multiply-add of the products, {STEP_GFLOP}",
    **PEAK_CONVENTIONS,
    "exponents": f"slope of log against log over the {_FITTED} largest values",
    "processes": f"images/s of training on synthetic images of 32 pixels, width 128, depth 6, batch {_SHARED} in all",
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """Sizes of a model and its batch."""

    tokens: int = 256
    batch: int = 1
    depth: int = 6


def sweeps(largest_tokens: int) -> dict[str, list[Point]]:
    """Map each varying quantity to its points, in ascending order."""
    middle = Point()
    return {
        "tokens": [replace(middle, tokens=value) for value in TOKENS if value <= largest_tokens],
        "batch": [replace(middle, batch=value) for value in BATCHES],
        "depth": [replace(middle, depth=value) for value in DEPTHS],
    }


def measure_growth(
    turns: int, processes: int, progress: ProgressFn, *, largest_tokens: int = TOKENS[-1]
) -> dict[str, Any]:
    """Measure seconds and bytes of every sweep. `processes` are compared with one; 0 skips that comparison.

    ValueError for no turns, one process, processes that cannot share a step, and tokens that are not in `TOKENS`.
    """
    check_positive("--turns", turns)
    check(processes == 0 or processes > 1, "--processes", processes, "give 2 or more, or 0 to skip the comparison")
    rule = f"they share steps of {_SHARED} images, which their number must divide"
    check(processes == 0 or _SHARED % processes == 0, "--processes", processes, rule)
    rule = f"choose from {', '.join(map(str, TOKENS))}"
    check(largest_tokens in TOKENS, "--largest_tokens", largest_tokens, rule)
    result: dict[str, Any] = {"sweeps": {}, "turns": turns, "machine": machine("cpu"), "conventions": CONVENTIONS}
    if processes:
        progress(f"1 and {processes} processes")
        found = result["processes"] = measure_processes(processes, turns)
        rates = ", ".join(f"{each['median']:.0f}" for each in found["images_per_second"].values())
        progress(f"  {rates} images/s; ratio {format_quartiles(found['ratio'], 3)}")
    for name, points in sweeps(largest_tokens).items():
        progress(f"{name}: {', '.join(str(getattr(point, name)) for point in points)}")
        found = result["sweeps"][name] = measure_sweep(name, points, turns)
        for kind in ("forward", "step"):
            times = ", ".join(_milliseconds(each) for each in found[kind]["seconds"])
            shares = ", ".join(f"{share:.0%}" for share in found[kind]["share_of_peak"])
            slopes = found[kind]["exponents"]
            grows = "too few sizes for an exponent"
            if slopes["seconds"] is not None:
                grows = f"exponents of time {slopes['seconds']:.2f}, of memory {slopes['bytes']:.2f}"
            progress(f"  {kind}: {times} ms; of peak {shares}; {grows}")
    return result


def _milliseconds(seconds: dict[str, float]) -> str:
    median, lower, upper = (format_number(1e3 * seconds[name]) for name in ("median", "lower", "upper"))
    return f"{median} ({lower}–{upper})"


def measure_sweep(name: str, points: Sequence[Point], turns: int) -> dict[str, Any]:
    """Measure both kinds of pass at every point, and the exponents of their growth."""
    values = [getattr(point, name) for point in points]
    result: dict[str, Any] = {"values": values, "middle": vars(Point())}
    product, product_gflop = matrix_product("fp32", "cpu")
    for kind, make, passes in (("forward", _forward, 1), ("step", _step, STEP_PASSES)):
        functions: dict[str, Callable[[], object]] = {}
        memory, gflop = [], {}
        for point in points:
            model, images = _model(point), torch.rand(point.batch, 3, *_size(point))
            function = make(model, images)
            function()
            memory.append(peak_memory_of(function, set(weight_storages(model))))
            value = str(getattr(point, name))
            gflop[value] = passes * 2 * multiply_adds(model, _size(point), every_token=False) * point.batch / 1e9
            functions[value] = function
        seed = f"{name} {kind}"
        times = time_interleaved({**functions, PEAK: product}, turns, "cpu", shortest=_SHORTEST, seed=seed)
        seconds = [quartiles([each.wall for each in times[value]], 6) for value in functions]
        medians = [each["median"] for each in seconds]
        peak = compare_with_peak(times, gflop, product_gflop)
        result[kind] = {
            "seconds": seconds,
            "gflop": [round(gflop[value], 6) for value in functions],
            **peak,
            "share_of_peak": [peak["share_of_peak"][value] for value in functions],
            "bytes": memory,
            "exponents": {"seconds": exponent(values, medians), "bytes": exponent(values, memory)},
        }
    return result


def exponent(values: Sequence[float], costs: Sequence[float]) -> float | None:
    """Fit the slope of log cost against log value over the largest values; None with too few of them."""
    if len(values) < _FITTED:
        return None
    slope, _ = np.polyfit(np.log(values[-_FITTED:]), np.log(costs[-_FITTED:]), 1)
    return round(float(slope), 3)


def _size(point: Point) -> tuple[int, int]:
    side = round(point.tokens**0.5)
    assert side * side == point.tokens, "tokens are a square of patches"
    return side * PATCH, side * PATCH


def _model(point: Point) -> nn.Module:
    return create_model(
        "vit",
        image_size=_size(point),
        patch_size=PATCH,
        width=WIDTH,
        depth=point.depth,
        num_heads=HEADS,
        num_classes=CLASSES,
        pooling="gap",
        class_token=False,
    )


def _forward(model: nn.Module, images: Tensor) -> Callable[[], object]:
    model.eval()

    def run() -> None:
        with torch.inference_mode():
            model(images)

    return run


def _step(model: nn.Module, images: Tensor) -> Callable[[], object]:
    model.train()
    labels = torch.arange(len(images)) % CLASSES
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def run() -> None:
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


# ------------------------------------------------------------------ processes

_RUN = """\
model: {name: vit, image_size: 32, patch_size: 4, width: 128, depth: 6, num_heads: 4, pooling: gap, class_token: false}
data: {name: fake, fake_images: 2048}
augment: {flip: true, crop: pad}
train: {epochs: 2}
device: cpu
"""


def measure_processes(count: int, turns: int) -> dict[str, Any]:
    """Measure images/s of a short training by one process and by `count`, alternately, and their ratio in each turn."""
    rates: dict[int, list[float]] = {1: [], count: []}
    for turn in range(turns):
        for number in (1, count) if turn % 2 == 0 else (count, 1):
            rates[number].append(_train(number))
    ratios = [several / one for several, one in zip(rates[count], rates[1], strict=True)]
    return {
        "images_per_second": {str(number): quartiles(found, 1) for number, found in rates.items()},
        "ratio": quartiles(ratios),
    }


def _train(processes: int) -> float:
    """Train in a new process and return the images/s of its summary."""
    threads = max(1, (os.cpu_count() or 1) // processes)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "run.yaml"
        config.write_text(_RUN)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        words = ["-m", "vit.cli", "train", "--config", str(config), "--output_dir", f"{folder}/run"]
        words += ["--data.batch_size", str(_SHARED)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TQDM_DISABLE": "1"}
        command = [sys.executable, *(launcher if processes > 1 else []), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"a training of {processes} process(es) failed: {done.stderr[-2000:]}")
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
    return float(summary["images_per_second"])


def draw_growth(result: dict[str, Any], path: Path) -> None:
    """Draw time and memory against each quantity as a PNG, with the numbers beside it."""
    lines = {
        (name, cost): {
            kind: [each["median"] for each in sweep[kind]["seconds"]] if cost == "seconds" else sweep[kind]["bytes"]
            for kind in ("forward", "step")
        }
        for name, sweep in result["sweeps"].items()
        for cost in ("seconds", "bytes")
    }
    values = {name: sweep["values"] for name, sweep in result["sweeps"].items()}
    slopes = {
        (name, cost): {kind: sweep[kind]["exponents"][cost] for kind in ("forward", "step")}
        for name, sweep in result["sweeps"].items()
        for cost in ("seconds", "bytes")
    }
    save_figure(growth(values, lines, slopes), path, result)
