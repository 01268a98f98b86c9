"""The backends of attention against each other, and `auto` against `sdpa` in whole models: where the table of
`vit/attention/choice.py` comes from.

Everything is timed in turns, because machines are noisy: a ratio is taken within a turn, and the median of the turns'
ratios is given.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from vit.attention.attend import attend
from vit.attention.backends import BACKENDS, Refused
from vit.attention.masks import causal, padding
from vit.config import check, check_positive, nearest
from vit.experiments.turns import DTYPES, Seconds, check_device, time_in_turns, times_as_fast
from vit.hub import create_model

Tell = Callable[[str], None]
TOKENS = (65, 197, 577, 1025)
HEADS, WIDTH = 12, 64
"""Unless another number of heads is asked for."""
MODELS = ("vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224")
_SHORTEST = 0.02


def bench_attention(
    device: str,
    dtypes: Sequence[str],
    tokens: Sequence[int],
    batch_sizes: Sequence[int],
    turns: int,
    tell: Tell,
    *,
    heads: Sequence[int] = (HEADS,),
) -> list[dict[str, Any]]:
    """Milliseconds of every backend, heads of 64, forward and training; `fastest` is what the table should say.

    A backend that refuses has no time. ValueError for an unknown type, an empty batch and a device that is not there.
    """
    _check(device, dtypes, batch_sizes)
    rows = []
    for batch_size, num_heads, dtype, n in itertools.product(batch_sizes, heads, dtypes, tokens):
        for (mask_name, mask), training in itertools.product(_masks(n, batch_size, device).items(), (False, True)):
            sides = _backends((batch_size, num_heads, n, WIDTH), DTYPES[dtype], device, mask, training)
            draw = f"{batch_size} {num_heads} {n} {dtype} {mask_name} {training}"
            times = time_in_turns(sides, turns, device, shortest=_SHORTEST, draw=draw)
            rows.append(
                {
                    "batch_size": batch_size,
                    "heads": num_heads,
                    "dtype": dtype,
                    "tokens": n,
                    "mask": mask_name,
                    "training": training,
                    "ms": {name: round(1e3 * _median(seconds), 3) for name, seconds in times.items()},
                    "fastest": min(times, key=lambda name: _median(times[name])),
                }
            )
            tell(str(rows[-1]))
    return rows


def bench_models(
    device: str, dtypes: Sequence[str], names: Sequence[str], batch_sizes: Sequence[int], turns: int, tell: Tell
) -> list[dict[str, Any]]:
    """How many times faster whole models are with `auto` than with `sdpa`, forward and training step.

    ValueError for what `bench_attention` refuses, and for a name that is no Vision Transformer's.
    """
    _check(device, dtypes, batch_sizes)
    for name in names:
        _check_model(name)
    rows = []
    for name, dtype, batch_size, training in itertools.product(names, dtypes, batch_sizes, (False, True)):
        sides = {
            backend: _model_pass(name, backend, DTYPES[dtype], batch_size, device, training)
            for backend in ("sdpa", "auto")
        }
        draw = f"{name} {dtype} {batch_size} {training}"
        times = time_in_turns(sides, turns, device, shortest=_SHORTEST, draw=draw)
        ratios = times_as_fast(times["auto"], times["sdpa"])
        rows.append(
            {
                "model": name,
                "dtype": dtype,
                "batch_size": batch_size,
                "training": training,
                "ms": {side: round(1e3 * _median(seconds), 2) for side, seconds in times.items()},
                "ratio": round(statistics.median(ratios), 3),
                "ratios": [round(ratio, 3) for ratio in ratios],
            }
        )
        tell(str(rows[-1]))
    return rows


def _check(device: str, dtypes: Sequence[str], batch_sizes: Sequence[int]) -> None:
    check_device("--device", device)
    for dtype in dtypes:
        check(dtype in DTYPES, "--dtypes", dtype, nearest(dtype, DTYPES))
    for size in batch_sizes:
        check_positive("--batch_sizes", size)


def _check_model(name: str) -> None:
    try:
        with torch.device("meta"):
            create_model(name, backend="auto")
    except ValueError as error:
        raise ValueError(f"--models: {name!r} is not valid: {error}") from error


def _masks(n: int, batch_size: int, device: str) -> dict[str, Tensor | None]:
    lengths = torch.arange(batch_size, device=device) % 2 * (n // 2) + n // 2
    return {"none": None, "padding": padding(lengths, n), "causal": causal(n, device=torch.device(device))}


def _backends(
    shape: tuple[int, int, int, int], dtype: torch.dtype, device: str, mask: Tensor | None, training: bool
) -> dict[str, Callable[[], None]]:
    """A pass of every backend that does not refuse."""
    vectors = [torch.randn(shape, device=device).to(dtype).requires_grad_(training) for _ in range(3)]
    sides: dict[str, Callable[[], None]] = {}
    for name in BACKENDS:

        def run(name: str = name) -> None:
            answer = attend(*vectors, mask=mask, backend=name)
            if training:
                torch.autograd.grad(answer.sum(), vectors)

        try:
            run()
        except Refused:
            continue
        sides[name] = run
    return sides


def _median(times: list[Seconds]) -> float:
    return statistics.median(each.wall for each in times)


def _model_pass(
    name: str, backend: str, dtype: torch.dtype, batch_size: int, device: str, training: bool
) -> Callable[[], None]:
    torch.manual_seed(0)
    model = create_model(name, backend=backend).to(device).train(training)
    images = torch.randn(batch_size, 3, *model.config.image_size, device=device)
    half = dtype != torch.float32

    def run() -> None:
        autocast = torch.autocast(torch.device(device).type, dtype, enabled=half)
        with autocast, nullcontext() if training else torch.inference_mode():
            logits = model(images)
        if training:
            torch.autograd.grad(logits.float().square().sum(), list(model.parameters()))

    return run
