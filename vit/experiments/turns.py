"""Timing in turns: every side once, then every side again, so that what the machine does meanwhile hits all alike.

Owns the clock, the spread and what is said of the machine. Of what it times it knows only the matrix product that is
the machine's peak. A ratio is taken within a turn and the median of the turns' ratios is given; the order of the sides
is drawn anew for every turn, so that none always follows the same other.
"""

from __future__ import annotations

import hashlib
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from tqdm import tqdm

import vit
from vit.config import check
from vit.layers.packed import PackedLinear, packing_pays
from vit.processor import MULTIPLIES_BFLOAT16, processor_name

PEAK = "matrix product"
"""The side that `matrix_product` is timed as."""
PEAK_CONVENTIONS = {
    "peak_gflops": "GFLOP/s of one large matrix product of the same type (float32 where it has no fast one), "
    "timed in the same turns: torch's or, on a CPU, one with packed weights, whichever is faster",
    "product_gflop": "GFLOP of what is timed of that product at once (in epochs: of five)",
    "share_of_peak": "gflop over seconds over peak_gflops, within a turn; median of the turns",
}
STEP_PASSES = 3
"""Forward passes that a step is counted as: a backward pass is two."""
STEP_GFLOP = "three times that for a step, though the images' own gradient is not computed"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PRODUCT_SIDE = {"cpu": 2048, "cuda": 8192}
_SMALL_PRODUCT, _FAR_SLOWER = 256, 8
"""The product that tells whether a type is fast, and how many times float32's it may take."""
_TRIED = 3
"""Calls that tell which of two products is the faster; ten times as many of the small one."""
_LONG = 1.0
"""Seconds of a call in which it does not tell what ran before: the first step of 0.7 to 2.9 s after another side's took
0.97 to 1.01 times what the second did (LOG.md)."""
WARM_UP = 2
"""Calls of which the first compiles and, on CUDA, the second records what later ones play back."""


class Seconds(NamedTuple):
    """On the wall's clock, and of all threads of this process, which other programs on the machine disturb less."""

    wall: float
    processor: float


def time_in_turns(
    sides: Mapping[str, Callable[[], object]], turns: int, device: str, *, shortest: float = 0.0, draw: str = ""
) -> dict[str, list[Seconds]]:
    """Seconds of a call of every side in every turn.

    A turn repeats a call until it lasts `shortest` seconds, as the third of three calls before the first turn tells. A
    call shorter than a second is made once before, untimed: what the side before it left in caches and freed memory is
    not its own. At 0 there are neither such calls nor repeats. The orders follow from `draw`: give each of many
    measurements its own, lest one side follow the same other in all. ValueError for no turns.
    """
    check(turns >= 1, "--turns", turns, "it must be at least 1")
    calls = {name: _calls_of_a_turn(side, shortest, device) for name, side in sides.items()}
    times: dict[str, list[Seconds]] = {name: [] for name in sides}
    order = random.Random(draw)
    for _ in tqdm(range(turns), desc="turns", disable=None, leave=False):
        for name in order.sample(list(sides), len(sides)):
            untimed, timed = calls[name]
            for _ in range(untimed):
                sides[name]()
            times[name].append(time_calls(sides[name], timed, device))
    return times


def time_calls(side: Callable[[], object], calls: int, device: str) -> Seconds:
    """Of one call, from `calls` of them; on CUDA from an empty queue to an empty queue."""
    _empty_queue(device)
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(calls):
        side()
    _empty_queue(device)
    return Seconds((time.perf_counter() - wall) / calls, (time.process_time() - processor) / calls)


def _empty_queue(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def _calls_of_a_turn(side: Callable[[], object], shortest: float, device: str) -> tuple[int, int]:
    """Those before the clock starts, and those that are timed."""
    if shortest == 0:
        return 0, 1
    time_calls(side, WARM_UP, device)
    seconds = time_calls(side, 1, device).wall
    return int(seconds < _LONG), max(1, round(shortest / seconds))


def check_device(option: str, device: str) -> None:
    """ValueError for a device that the machine does not have."""
    there = device == "cpu" or (device == "cuda" and torch.cuda.is_available())
    check(there, option, device, "it is not on this machine; it has cpu")


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Median and quartiles."""
    lower, middle, upper = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {name: round(value, digits) for name, value in (("median", middle), ("lower", lower), ("upper", upper))}


def digits(value: float) -> str:
    """A number for the terminal: three digits, or all before the point."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"


def times_as_fast(ours: Sequence[Seconds], theirs: Sequence[Seconds], clock: str = "wall") -> list[float]:
    """How many times faster ours was, turn by turn."""
    return [getattr(their, clock) / getattr(our, clock) for our, their in zip(ours, theirs, strict=True)]


def against_peak(
    times: Mapping[str, Sequence[Seconds]], gflop: Mapping[str, float], product_gflop: float
) -> dict[str, Any]:
    """`peak_gflops`, `product_gflop` and `share_of_peak`: what the sides did, by the `gflop` of a call, of what the
    matrix product among them reached.
    """
    peaks = [product_gflop / each.wall for each in times[PEAK]]
    shares = {
        name: [work / each.wall / peak for each, peak in zip(times[name], peaks, strict=True)]
        for name, work in gflop.items()
    }
    return {
        "peak_gflops": spread(peaks, 1),
        "product_gflop": round(product_gflop, 6),
        "share_of_peak": {name: spread(found)["median"] for name, found in shares.items()},
    }


def matrix_product(dtype: str, device: str) -> tuple[Callable[[], object], float]:
    """One large matrix product, to be timed as another side, and its GFLOP: what the machine can do at most.

    On a CPU the faster of torch's and of one with packed weights, as three calls of each tell; float32's where
    torch has no fast one of the type (in float16 2048³ took 43 s on a Zen 4).
    """
    side = _PRODUCT_SIDE[torch.device(device).type]
    small = min(_SMALL_PRODUCT, side)
    in_type, in_float32 = (
        _fastest(_torch_product(small, each, device), device, 10 * _TRIED) for each in (dtype, "fp32")
    )
    if in_type > _FAR_SLOWER * in_float32:
        dtype = "fp32"
    ways = [_torch_product(side, dtype, device)]
    if device == "cpu" and packing_pays(DTYPES[dtype]):
        packed = PackedLinear(nn.Linear(side, side, bias=False, dtype=DTYPES[dtype]))
        rows = torch.randn(side, side).to(DTYPES[dtype])
        ways.append(lambda: packed(rows))
    return min(ways, key=lambda way: _fastest(way, device)), 2 * side**3 / 1e9


def _torch_product(side: int, dtype: str, device: str) -> Callable[[], object]:
    first, second = (torch.randn(side, side, device=device).to(DTYPES[dtype]) for _ in range(2))
    out = torch.empty_like(first)
    return lambda: torch.mm(first, second, out=out)


def _fastest(call: Callable[[], object], device: str, tries: int = _TRIED) -> float:
    return min(time_calls(call, 1, device).wall for _ in range(tries))


def machine(device: str, packages: Iterable[str] = ()) -> dict[str, Any]:
    """What a time depends on besides the program; the versions of those `packages` that are installed."""
    return {
        "device": torch.cuda.get_device_name() if torch.device(device).type == "cuda" else processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "multiplies_bfloat16": MULTIPLIES_BFLOAT16,
        "system": f"{platform.system()} {platform.release()}",
        "versions": {"python": platform.python_version(), **_versions(("torch", *packages))},
    }


def code_state(places: Sequence[str]) -> str:
    """Twelve digits that change with the code of this package in these files and folders."""
    folder = Path(vit.__file__).parent
    digest = hashlib.sha256()
    found = [folder / place for place in places]
    for file in sorted(file for place in found for file in ([place] if place.is_file() else place.rglob("*.py"))):
        digest.update(f"{file.relative_to(folder).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
