"""Interleaved timing: every function once per turn, so that other load on the machine affects all of them alike.

Ratios are taken within a turn, and the median over the turns is reported. The order is shuffled in every turn, so that
no function always follows the same other one. A large matrix product, timed as another function, gives the machine's
peak.
"""

from __future__ import annotations

import hashlib
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from tqdm import tqdm

from vit.config import check
from vit.layers.packed import PackedLinear, packing_is_faster

PEAK = "matrix product"
"""Name of `matrix_product` among the timed functions."""
PEAK_CONVENTIONS = {
    "peak_gflops": "GFLOP/s of one large matrix product of the same type (float32 where it has no fast one), "
    "timed in the same turns: torch's or, on a CPU, one with packed weights, whichever is faster",
    "product_gflop": "GFLOP of one timed call of that product (in epochs: of five products)",
    "share_of_peak": "gflop over seconds over peak_gflops, within a turn; median of the turns",
}
STEP_PASSES = 3
"""A training step counts as three forward passes, because a backward pass costs two."""
STEP_GFLOP = "three times that for a step, though the images' own gradient is not computed"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PRODUCT_SIDE = {"cpu": 2048, "cuda": 8192}
_SMALL_PRODUCT, _MAX_SLOWDOWN = 256, 8
"""Side of the product that tells whether a type is fast, and how many times as long as float32 it may take."""
_TRIALS = 3
"""Calls to find the faster of two products; ten times as many for the small one."""
_LONG_CALL = 1.0
"""Seconds from which a call needs no untimed one before it: after another function, the first step of 0.7 to 2.9 s took
0.97 to 1.01 times as long as the second (LOG.md)."""
WARM_UP = 2
"""Calls of which the first compiles and, on CUDA, the second records the graphs that later ones replay."""

ProgressFn = Callable[[str], None]
"""Prints a line of progress."""


class Seconds(NamedTuple):
    """Wall time, and processor time of all threads of this process, which other programs disturb less."""

    wall: float
    processor: float


def time_interleaved(
    functions: Mapping[str, Callable[[], object]], turns: int, device: str, *, shortest: float = 0.0, seed: str = ""
) -> dict[str, list[Seconds]]:
    """Time a call of every function in every turn, in seconds.

    Calls are repeated within a turn to last `shortest` seconds, judging by the third of three calls before the first
    turn. Calls shorter than a second follow an untimed one, because the function before has left its data in caches and
    freed memory. With `shortest` 0 there is neither. `seed` determines the orders: give each measurement its own, so
    that a function does not follow the same other one in all of them. ValueError for no turns.
    """
    check(turns >= 1, "--turns", turns, "it must be at least 1")
    calls = {name: _calls_per_turn(function, shortest, device) for name, function in functions.items()}
    times: dict[str, list[Seconds]] = {name: [] for name in functions}
    order = random.Random(seed)
    for _ in tqdm(range(turns), desc="turns", disable=None, leave=False):
        for name in order.sample(list(functions), len(functions)):
            untimed, timed = calls[name]
            for _ in range(untimed):
                functions[name]()
            times[name].append(time_calls(functions[name], timed, device))
    return times


def time_calls(function: Callable[[], object], calls: int, device: str) -> Seconds:
    """Measure the mean of `calls` calls, on CUDA between synchronizations."""
    _synchronize(device)
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(calls):
        function()
    _synchronize(device)
    return Seconds((time.perf_counter() - wall) / calls, (time.process_time() - processor) / calls)


def _synchronize(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def _calls_per_turn(function: Callable[[], object], shortest: float, device: str) -> tuple[int, int]:
    """Return the numbers of untimed and of timed calls."""
    if shortest == 0:
        return 0, 1
    time_calls(function, WARM_UP, device)
    seconds = time_calls(function, 1, device).wall
    return int(seconds < _LONG_CALL), max(1, round(shortest / seconds))


def check_device(option: str, device: str) -> None:
    """Raise ValueError for a device that the machine does not have."""
    exists = device == "cpu" or (device == "cuda" and torch.cuda.is_available())
    check(exists, option, device, "it is not on this machine; it has cpu")


def quartiles(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Compute median and quartiles."""
    lower, middle, upper = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {name: round(value, digits) for name, value in (("median", middle), ("lower", lower), ("upper", upper))}


def format_quartiles(values: Mapping[str, float] | None, digits: int) -> str:
    """Format `quartiles` as `median (lower–upper)`; None as a dash."""
    if values is None:
        return "—"
    median, lower, upper = (f"{values[name]:.{digits}f}" for name in ("median", "lower", "upper"))
    return f"{median} ({lower}–{upper})"


def format_number(value: float) -> str:
    """Format with three significant digits, or as an integer if it has more."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"


def speedups(ours: Sequence[Seconds], theirs: Sequence[Seconds], clock: str = "wall") -> list[float]:
    """Compute how many times as fast as theirs ours was, for each turn."""
    return [getattr(their, clock) / getattr(our, clock) for our, their in zip(ours, theirs, strict=True)]


def compare_with_peak(
    times: Mapping[str, Sequence[Seconds]], gflop: Mapping[str, float], product_gflop: float
) -> dict[str, Any]:
    """Compute `peak_gflops`, `product_gflop` and `share_of_peak`, from the `gflop` per call of each function and of the
    matrix product timed with them.
    """
    peaks = [product_gflop / each.wall for each in times[PEAK]]
    shares = {
        name: [work / each.wall / peak for each, peak in zip(times[name], peaks, strict=True)]
        for name, work in gflop.items()
    }
    return {
        "peak_gflops": quartiles(peaks, 1),
        "product_gflop": round(product_gflop, 6),
        "share_of_peak": {name: quartiles(found)["median"] for name, found in shares.items()},
    }


def matrix_product(dtype: str, device: str) -> tuple[Callable[[], object], float]:
    """Return one large matrix product, to be timed with other functions as the machine's peak, and its GFLOP.

    On a CPU this is the faster of torch's and one with packed weights, judging by three calls of each. It is float32's
    if torch has no fast product of the type (in float16, 2048³ took 43 s on a Zen 4).
    """
    side = _PRODUCT_SIDE[torch.device(device).type]
    small = min(_SMALL_PRODUCT, side)
    of_type, of_float32 = (
        _fastest(_torch_product(small, each, device), device, 10 * _TRIALS) for each in (dtype, "fp32")
    )
    if of_type > _MAX_SLOWDOWN * of_float32:
        dtype = "fp32"
    products = [_torch_product(side, dtype, device)]
    if device == "cpu" and packing_is_faster(DTYPES[dtype]):
        packed = PackedLinear(nn.Linear(side, side, bias=False, dtype=DTYPES[dtype]))
        rows = torch.randn(side, side).to(DTYPES[dtype])
        products.append(lambda: packed(rows))
    return min(products, key=lambda product: _fastest(product, device)), 2 * side**3 / 1e9


def _torch_product(side: int, dtype: str, device: str) -> Callable[[], object]:
    first, second = (torch.randn(side, side, device=device).to(DTYPES[dtype]) for _ in range(2))
    out = torch.empty_like(first)
    return lambda: torch.mm(first, second, out=out)


def _fastest(call: Callable[[], object], device: str, tries: int = _TRIALS) -> float:
    return min(time_calls(call, 1, device).wall for _ in range(tries))


def code_digest(paths: Sequence[str]) -> str:
    """Hash the code in these files and folders of the checkout to twelve hexadecimal digits."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    roots = [folder / path for path in paths]
    for file in sorted(file for root in roots for file in ([root] if root.is_file() else root.rglob("*.py"))):
        digest.update(f"{file.relative_to(folder).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]
