"""Cost of attention statistics: streamed against the map of all weights, in time and memory.

The usual way computes the map, multiplies it with a table of distances and sums it. Memory is measured by torch's own
profiler, which sees every allocation of torch on the device: the peak of the bytes allocated at once, without the input
vectors. The process's resident memory would be too coarse.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import (
    DTYPES,
    PEAK,
    PEAK_CONVENTIONS,
    ProgressFn,
    Seconds,
    check_device,
    compare_with_peak,
    format_quartiles,
    matrix_product,
    quartiles,
    speedups,
    time_interleaved,
)
from vit.attention.core import attention_weights
from vit.attention.statistics import AttentionStatistics, attention_statistics
from vit.config import check
from vit.processor import machine

WIDTH = 64
"""Width of a head, as in ViT."""
_SHORTEST = 0.02
"""Seconds per turn, because a few tokens take a millisecond."""
CONVENTIONS = {
    "milliseconds": "median and quartiles of the turns; processor_: time of all threads of the process",
    "times_as_fast": "streamed over map, within a turn; median and quartiles of the turns",
    "times_less_processor": "the same in processor time, which other programs disturb less",
    "bytes": "peak of torch's allocations besides the vectors (torch.profiler)",
    "gflop": "product of queries and keys, two for each multiply-add, which both ways compute",
    **PEAK_CONVENTIONS,
}


def bench_statistics(
    tokens: Sequence[int] = (196, 1024, 4096),
    *,
    num_heads: int = 12,
    batch_size: int = 1,
    turns: int = 5,
    dtype: str = "fp32",
    device: str = "cpu",
    backend: str = "auto",
    progress: ProgressFn = lambda _: None,
) -> dict[str, Any]:
    """Measure milliseconds, bytes and speedups of both ways for every number of tokens; `progress` gets each row.

    Tokens form a square grid of four or more. ValueError, before anything is timed, for other numbers of tokens and for
    a device that the machine does not have.
    """
    check_device("--device", device)
    check(turns >= 1, "--turns", turns, "it must be at least 1")
    for count in tokens:
        side = max(2, round(max(count, 0) ** 0.5))
        check(side * side == count, "--tokens", count, f"it must be a square of 4 or more, such as {side * side}")
    rows = []
    for count in tokens:
        rows.append(_compare(count, (batch_size, num_heads), turns=turns, dtype=dtype, device=device, backend=backend))
        progress(line(rows[-1]))
    return {
        "device": device,
        "dtype": dtype,
        "backend": backend,
        "turns": turns,
        "machine": machine(device),
        "batch_size": batch_size,
        "num_heads": num_heads,
        "width": WIDTH,
        "tokens": rows,
        "conventions": CONVENTIONS,
    }


def _compare(
    count: int, leading: tuple[int, int], *, turns: int, dtype: str, device: str, backend: str
) -> dict[str, Any]:
    places, groups = _tokens(count, torch.device(device))
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(*leading, count, WIDTH, generator=generator).to(device, DTYPES[dtype]) for _ in range(2))
    ways: dict[str, Callable[[], AttentionStatistics]] = {
        "streamed": partial(attention_statistics, query, key, coordinates=places, key_groups=groups, backend=backend),
        "map": partial(map_statistics, query, key, places, groups),
    }
    difference = _largest_difference(*(way() for way in ways.values()))
    peaks = {name: peak_memory(way, torch.device(device)) for name, way in ways.items()}
    product, product_gflop = matrix_product(dtype, device)
    times = time_interleaved({**ways, PEAK: product}, turns, device, shortest=_SHORTEST, seed=f"{count} tokens")
    gflop = 2 * leading[0] * leading[1] * count**2 * WIDTH / 1e9
    wall, processor = (speedups(times["streamed"], times["map"], clock) for clock in Seconds._fields)
    return {
        "tokens": count,
        "milliseconds": {name: _milliseconds(times[name], "wall") for name in ways},
        "times_as_fast": quartiles(wall),
        "processor_milliseconds": {name: _milliseconds(times[name], "processor") for name in ways},
        "times_less_processor": quartiles(processor),
        "bytes": peaks,
        "times_less_memory": round(peaks["map"] / peaks["streamed"], 1),
        "gflop": round(gflop, 6),
        **compare_with_peak(times, dict.fromkeys(ways, gflop), product_gflop),
        "largest_relative_difference": difference,
    }


def line(row: dict[str, Any]) -> str:
    """Format a row for the terminal."""
    times = ", ".join(f"{name} {found['median']:.1f} ms" for name, found in row["milliseconds"].items())
    ratio, less = format_quartiles(row["times_as_fast"], 2), row["times_less_memory"]
    share = f"{row['share_of_peak']['streamed']:.0%} of peak"
    more = row["bytes"]["streamed"] / row["bytes"]["map"]
    memory = f"{less} times less memory" if more <= 1 else f"{more:.1f} times the memory"
    return f"{row['tokens']} tokens: {times}; {ratio} times as fast, {share}; {memory}"


def _milliseconds(times: list[Seconds], clock: str) -> dict[str, float]:
    return quartiles([1000 * getattr(each, clock) for each in times], 2)


def map_statistics(query: Tensor, key: Tensor, places: Tensor, groups: dict[str, Tensor]) -> AttentionStatistics:
    """Compute the same statistics from the map of all weights, b h n m, which is in memory more than once."""
    placed = ~places.isnan().any(dim=1)
    distances = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist").nan_to_num(nan=0.0)
    with torch.no_grad():
        weights = attention_weights(query, key)
        sets = torch.stack((placed, *groups.values()), dim=1).to(weights.dtype)  # m s
        placed_mass, *masses = (weights @ sets).unbind(-1)
        return AttentionStatistics(
            distance=(weights * distances).sum(dim=-1),
            placed_mass=placed_mass * placed,
            entropy=torch.special.entr(weights).sum(dim=-1),
            mass=dict(zip(groups, masses, strict=True)),
            self_mass=weights.diagonal(dim1=-2, dim2=-1).clone(),
        )


def peak_memory(work: Callable[[], object], device: torch.device) -> int:
    """Measure the peak of bytes that torch allocates for `work`, its results included."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # silences the profiler's own log
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        profile.export_chrome_trace(str(file))
        events = [event for event in json.loads(file.read_text())["traceEvents"] if event["name"] == "[memory]"]
    alive = highest = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        alive += event["args"]["Bytes"]
        highest = max(highest, alive)
    return highest


def _tokens(count: int, device: torch.device) -> tuple[Tensor, dict[str, Tensor]]:
    side = round(count**0.5)
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).float()
    return places.to(device), {"first": torch.arange(count, device=device) < 1}


def _largest_difference(ours: AttentionStatistics, usual: AttentionStatistics) -> float:
    """Compute the largest difference of entropy and distance, relative to the largest value."""
    assert ours.distance is not None
    assert usual.distance is not None
    pairs = ((ours.entropy, usual.entropy), (ours.distance, usual.distance))
    return max(float((first - second).abs().max() / second.abs().max()) for first, second in pairs)
