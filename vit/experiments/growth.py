"""How the cost of a Vision Transformer grows: time and memory against tokens, batch and depth; two processes over one.

One quantity moves at a time, away from one middle. Time in turns; memory is what tensors take beside the weights, in a
pass of its own. The processes train a small model on synthetic images, each with its part of the cores.
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

from vit.config import check, check_positive
from vit.evaluation.cost import multiply_adds
from vit.evaluation.memory import TENSOR_METER, LiveTensors, storages
from vit.experiments.turns import (
    PEAK,
    PEAK_CONVENTIONS,
    STEP_GFLOP,
    STEP_PASSES,
    against_peak,
    digits,
    machine,
    matrix_product,
    spread,
    time_in_turns,
)
from vit.figures.growth import growth
from vit.figures.style import save_figure
from vit.hub import create_model

PATCH, WIDTH, HEADS, CLASSES = 16, 192, 3, 1000
TOKENS = (64, 144, 256, 576, 1024, 2304, 4096)
BATCHES = (1, 2, 4, 8, 16, 32)
DEPTHS = (1, 2, 4, 8, 16, 24)
_SHARED = 128
"""Images of a step that processes share."""
_FITTED = 3
_SHORTEST = 0.1
CONVENTIONS = {
    "model": f"patches of {PATCH}, width {WIDTH}, {HEADS} heads, {CLASSES} classes, no class token",
    "forward": "inference",
    "step": "forward, cross-entropy, backward, fused AdamW",
    "seconds": "of one pass; median and quartiles of the turns",
    "bytes": f"the most at once beside the weights: {TENSOR_METER}; of a step the second, when AdamW has its averages",
    "gflop": f"of a pass of the batch: two for each multiply-add of the products, {STEP_GFLOP}",
    **PEAK_CONVENTIONS,
    "exponents": f"slope of log against log over the {_FITTED} largest values",
    "processes": f"images/s of training on synthetic images of 32 pixels, width 128, depth 6, batch {_SHARED} in all",
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """A model and its batch."""

    tokens: int = 256
    batch: int = 1
    depth: int = 6


def sweeps(largest_tokens: int) -> dict[str, list[Point]]:
    """What moves → the points, one step after another."""
    middle = Point()
    return {
        "tokens": [replace(middle, tokens=value) for value in TOKENS if value <= largest_tokens],
        "batch": [replace(middle, batch=value) for value in BATCHES],
        "depth": [replace(middle, depth=value) for value in DEPTHS],
    }


def measure_growth(
    turns: int, processes: int, tell: Callable[[str], None], *, largest_tokens: int = TOKENS[-1]
) -> dict[str, Any]:
    """Seconds and bytes by what moves. `processes`: how many are compared with one; 0: none are started.

    ValueError for no turns, one process, processes that cannot share a step, and tokens that are not in `TOKENS`.
    """
    check_positive("--turns", turns)
    check(processes == 0 or processes > 1, "--processes", processes, "give 2 or more, or 0 to start none")
    rule = f"they share steps of {_SHARED} images, which their number must divide"
    check(processes == 0 or _SHARED % processes == 0, "--processes", processes, rule)
    rule = f"choose from {', '.join(map(str, TOKENS))}"
    check(largest_tokens in TOKENS, "--largest_tokens", largest_tokens, rule)
    result: dict[str, Any] = {"sweeps": {}, "turns": turns, "machine": machine("cpu"), "conventions": CONVENTIONS}
    if processes:
        tell(f"1 and {processes} processes")
        found = result["processes"] = measure_processes(processes, turns)
        rates = ", ".join(f"{each['median']:.0f}" for each in found["images_per_second"].values())
        ratio = found["ratio"]
        tell(f"  {rates} images/s; ratio {ratio['median']:.3f} ({ratio['lower']:.3f}–{ratio['upper']:.3f})")
    for name, points in sweeps(largest_tokens).items():
        tell(f"{name}: {', '.join(str(getattr(point, name)) for point in points)}")
        found = result["sweeps"][name] = measure_sweep(name, points, turns)
        for kind in ("forward", "step"):
            times = ", ".join(_milliseconds(each) for each in found[kind]["seconds"])
            shares = ", ".join(f"{share:.0%}" for share in found[kind]["share_of_peak"])
            slopes = found[kind]["exponents"]
            grows = "too few sizes for an exponent"
            if slopes["seconds"] is not None:
                grows = f"exponents of time {slopes['seconds']:.2f}, of memory {slopes['bytes']:.2f}"
            tell(f"  {kind}: {times} ms; of peak {shares}; {grows}")
    return result


def _milliseconds(seconds: dict[str, float]) -> str:
    median, lower, upper = (digits(1e3 * seconds[name]) for name in ("median", "lower", "upper"))
    return f"{median} ({lower}–{upper})"


def measure_sweep(name: str, points: Sequence[Point], turns: int) -> dict[str, Any]:
    """Both kinds of pass at every point, and the exponents that they grow with."""
    values = [getattr(point, name) for point in points]
    result: dict[str, Any] = {"values": values, "middle": vars(Point())}
    product, product_gflop = matrix_product("fp32", "cpu")
    for kind, make, passes in (("forward", _forward, 1), ("step", _step, STEP_PASSES)):
        sides: dict[str, Callable[[], object]] = {}
        memory, gflop = [], {}
        for point in points:
            model, images = _model(point), torch.rand(point.batch, 3, *_size(point))
            side = make(model, images)
            side()
            memory.append(_peak(model, side))
            value = str(getattr(point, name))
            gflop[value] = passes * 2 * multiply_adds(model, _size(point), every_token=False) * point.batch / 1e9
            sides[value] = side
        draw = f"{name} {kind}"
        times = time_in_turns({**sides, PEAK: product}, turns, "cpu", shortest=_SHORTEST, draw=draw)
        seconds = [spread([each.wall for each in times[side]], 6) for side in sides]
        medians = [each["median"] for each in seconds]
        peak = against_peak(times, gflop, product_gflop)
        result[kind] = {
            "seconds": seconds,
            "gflop": [round(gflop[side], 6) for side in sides],
            **peak,
            "share_of_peak": [peak["share_of_peak"][side] for side in sides],
            "bytes": memory,
            "exponents": {"seconds": exponent(values, medians), "bytes": exponent(values, memory)},
        }
    return result


def exponent(values: Sequence[float], costs: Sequence[float]) -> float | None:
    """The slope of log cost against log value over the largest values; None where there are too few."""
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


def _peak(model: nn.Module, side: Callable[[], object]) -> int:
    with LiveTensors(set(storages(model))) as meter:
        side()
    return meter.peak


# ------------------------------------------------------------------ processes

_RUN = """\
model: {name: vit, image_size: 32, patch_size: 4, width: 128, depth: 6, num_heads: 4, pooling: gap, class_token: false}
data: {name: fake, fake_images: 2048}
augment: {flip: true, crop: pad}
train: {epochs: 2}
device: cpu
"""


def measure_processes(count: int, turns: int) -> dict[str, Any]:
    """Images/s of a short training by one process and by `count`, in turns, and the ratios of the turns."""
    rates: dict[int, list[float]] = {1: [], count: []}
    for turn in range(turns):
        for number in (1, count) if turn % 2 == 0 else (count, 1):
            rates[number].append(_train(number))
    ratios = [several / one for several, one in zip(rates[count], rates[1], strict=True)]
    return {
        "images_per_second": {str(number): spread(found, 1) for number, found in rates.items()},
        "ratio": spread(ratios),
    }


def _train(processes: int) -> float:
    """Images/s that a run of its own says in its summary."""
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
    """Time and memory against each quantity as a PNG, the numbers beside it."""
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
