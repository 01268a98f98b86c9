"""Speed of the attention backends, and of `auto` against `sdpa` in whole models.

The choices in `vit/attention/choice.py` come from these measurements. Ratios and the share of the machine's peak are
taken within a turn, because machines are noisy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import (
    DTYPES,
    PEAK,
    PEAK_CONVENTIONS,
    STEP_PASSES,
    ProgressFn,
    Seconds,
    check_device,
    compare_with_peak,
    format_number,
    format_quartiles,
    matrix_product,
    quartiles,
    speedups,
    time_interleaved,
)
from vit.attention.backends import BACKENDS, Refused
from vit.attention.core import attend
from vit.attention.masks import causal, padding
from vit.config import check, check_positive, nearest
from vit.evaluation.cost import multiply_adds
from vit.hub import create_model

TOKENS = (65, 197, 577, 1025)
HEADS, WIDTH = 12, 64
"""Default number of heads, and their width."""
MODELS = {"Ti": "vit_tiny_patch16_224", "S": "vit_small_patch16_224", "B": "vit_base_patch16_224"}
_SHORTEST = 0.02
"""Seconds per turn, because the quickest passes take a fraction of a millisecond."""
CONVENTIONS = {
    "ms": "milliseconds per pass; median and quartiles of the turns",
    "heads": f"number of heads, of width {WIDTH}",
    "mask": "padding: every second sequence has all its keys, the others half of them, rounded down",
    "training": "false: forward, without gradients; true: forward and backward",
    "fastest": "the least median",
    "compared": "the backend that `ratios` are about: the fastest, in models auto",
    "ratios": "how many times as fast as each other backend, within a turn; median and quartiles of the turns, which "
    "may disagree with the medians of milliseconds",
    "gflop": "two for each multiply-add of the products, three times that with a backward pass (of a model, though the "
    "images' own gradient is not computed); of attention: queries with keys and weights with values, what a mask hides "
    "as well",
    **PEAK_CONVENTIONS,
}


def bench_attention(
    device: str,
    dtypes: Sequence[str],
    tokens: Sequence[int],
    batch_sizes: Sequence[int],
    turns: int,
    progress: ProgressFn,
    *,
    heads: Sequence[int] = (HEADS,),
) -> list[dict[str, Any]]:
    """Time every backend, forward and in training; `fastest` is the entry for the table of `choice`.

    Queries, keys and values are views of one projection, and the gradient is laid out as in a block. Backends that
    refuse are left out. ValueError for an unknown type, an empty batch and a device that the machine does not have.
    """
    _check(device, dtypes, batch_sizes)
    products = {dtype: matrix_product(dtype, device) for dtype in dtypes}
    rows = []
    for batch_size, num_heads, dtype, n in itertools.product(batch_sizes, heads, dtypes, tokens):
        gflop = 4 * batch_size * num_heads * n**2 * WIDTH / 1e9
        for (mask_name, mask), training in itertools.product(_masks(n, batch_size, device).items(), (False, True)):
            functions = _backends((batch_size, n, num_heads), DTYPES[dtype], device, mask, training)
            what = {"batch_size": batch_size, "heads": num_heads, "dtype": dtype, "tokens": n, "mask": mask_name}
            what["training"] = training
            times = _time({**functions, PEAK: products[dtype][0]}, turns, device, what)
            rows.append({**what, **_summary(times, gflop * (STEP_PASSES if training else 1), products[dtype][1])})
            progress(line(rows[-1]))
    return rows


def bench_models(
    device: str,
    dtypes: Sequence[str],
    names: Sequence[str],
    batch_sizes: Sequence[int],
    turns: int,
    progress: ProgressFn,
) -> list[dict[str, Any]]:
    """Time whole models with `auto` and with `sdpa`, forward and training step.

    `names` are keys of `MODELS` or names of Vision Transformers for `create_model`. ValueError for other names, and as
    `bench_attention` raises it.
    """
    _check(device, dtypes, batch_sizes)
    names = [MODELS.get(name, name) for name in names]
    gflops = {name: _model_gflop(name) for name in names}
    products = {dtype: matrix_product(dtype, device) for dtype in dtypes}
    rows = []
    for name, dtype, batch_size, training in itertools.product(names, dtypes, batch_sizes, (False, True)):
        functions = {
            backend: _model_pass(name, backend, DTYPES[dtype], batch_size, device, training)
            for backend in ("sdpa", "auto")
        }
        what = {"model": name, "dtype": dtype, "batch_size": batch_size, "training": training}
        times = _time({**functions, PEAK: products[dtype][0]}, turns, device, what)
        gflop = gflops[name] * batch_size * (STEP_PASSES if training else 1)
        rows.append({**what, **_summary(times, gflop, products[dtype][1], ours="auto")})
        progress(line(rows[-1]))
    return rows


def _time(
    functions: Mapping[str, Callable[[], object]], turns: int, device: str, what: dict[str, Any]
) -> dict[str, list[Seconds]]:
    return time_interleaved(functions, turns, device, shortest=_SHORTEST, seed=" ".join(map(str, what.values())))


def _summary(
    times: Mapping[str, list[Seconds]], gflop: float, product_gflop: float, *, ours: str | None = None
) -> dict[str, Any]:
    """Summarise all functions but the product; the others are compared with `ours`, by default the fastest."""
    functions = {name: found for name, found in times.items() if name != PEAK}
    milliseconds = {name: quartiles([1e3 * each.wall for each in found]) for name, found in functions.items()}
    fastest = min(milliseconds, key=lambda name: milliseconds[name]["median"])
    compared = ours or fastest
    others = [name for name in functions if name != compared]
    return {
        "ms": milliseconds,
        "fastest": fastest,
        "compared": compared,
        "ratios": {name: quartiles(speedups(functions[compared], functions[name])) for name in others},
        "gflop": round(gflop, 6),
        **compare_with_peak(times, dict.fromkeys(functions, gflop), product_gflop),
    }


def line(row: dict[str, Any]) -> str:
    """Format a row for the terminal."""
    of_model = f"{row.get('model')} {row['dtype']} batch {row['batch_size']}"
    of_backends = f"{row['dtype']} {row['batch_size']} × {row.get('heads')} heads, {row.get('tokens')} tokens"
    masked = "" if row.get("mask", "none") == "none" else f", {row['mask']} mask"
    pass_name = "forward and backward" if row["training"] else "forward"
    what = f"{of_model if 'model' in row else of_backends}{masked}, {pass_name}"
    times = ", ".join(f"{name} {format_number(found['median'])} ms" for name, found in row["ms"].items())
    ratios = ", ".join(f"{format_quartiles(found, 3)} times as fast as {name}" for name, found in row["ratios"].items())
    share = row["share_of_peak"][row["compared"]]
    return f"{what}: {times}; {row['compared']} {ratios + ', ' if ratios else ''}{share:.0%} of peak"


def _check(device: str, dtypes: Sequence[str], batch_sizes: Sequence[int]) -> None:
    check_device("--device", device)
    for dtype in dtypes:
        check(dtype in DTYPES, "--dtypes", dtype, nearest(dtype, DTYPES))
    for size in batch_sizes:
        check_positive("--batch_sizes", size)


def _model_gflop(name: str) -> float:
    """Count GFLOP of a forward pass of one image. ValueError for a name that is not a Vision Transformer's."""
    try:
        with torch.device("meta"):
            model = create_model(name, backend="auto")
    except ValueError as error:
        raise ValueError(f"--models: {name!r} is not valid: {error}") from error
    return 2 * multiply_adds(model, model.config.image_size, every_token=False) / 1e9


def _masks(n: int, batch_size: int, device: str) -> dict[str, Tensor | None]:
    lengths = torch.where(torch.arange(batch_size, device=device) % 2 == 0, n // 2, n)
    return {"none": None, "padding": padding(lengths, n), "causal": causal(n, device=torch.device(device))}


def _backends(
    shape: tuple[int, int, int], dtype: torch.dtype, device: str, mask: Tensor | None, training: bool
) -> dict[str, Callable[[], None]]:
    """Build a pass of every backend that does not refuse: a block's work between its two projections, with copies."""
    b, n, h = shape
    projected = torch.randn(b, n, 3 * h * WIDTH, device=device).to(dtype).requires_grad_(training)
    gradient = torch.randn(b, n, h * WIDTH, device=device).to(dtype)
    functions: dict[str, Callable[[], None]] = {}
    for name in BACKENDS:

        def run(name: str = name) -> None:
            parts = projected.reshape(b, n, 3, h, WIDTH).unbind(2)
            query, key, value = (part.transpose(1, 2) for part in parts)  # b h n d
            attended = attend(query, key, value, mask=mask, backend=name).transpose(1, 2).flatten(2)  # b n (h d)
            if training:
                torch.autograd.grad(attended, projected, gradient)

        try:
            run()
        except Refused:
            continue
        functions[name] = run
    return functions


def _model_pass(
    name: str, backend: str, dtype: torch.dtype, batch_size: int, device: str, training: bool
) -> Callable[[], None]:
    torch.manual_seed(0)
    model = create_model(name, backend=backend).to(device).train(training)
    images = torch.randn(batch_size, 3, *model.config.image_size, device=device)

    def run() -> None:
        autocast = torch.autocast(torch.device(device).type, dtype, enabled=dtype != torch.float32)
        with autocast, nullcontext() if training else torch.inference_mode():
            logits = model(images)
        if training:
            torch.autograd.grad(logits.float().square().sum(), list(model.parameters()))

    return run
