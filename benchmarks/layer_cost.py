"""Cost of layers as sequences grow: self-attention, recurrent, convolution, restricted self-attention.

Table 1 of Vaswani et al. 2017 with measured times. Every layer maps n tokens of width d to n tokens of width d;
attention is measured without its projections, as in the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.layer_cost_figure import layer_cost
from vit.attention.core import attend
from vit.attention.local import attend_locally
from vit.config import check
from vit.figures.style import save_figure
from vit.processor import machine

Layer = Callable[[Tensor], Tensor]
"""`1 n d -> 1 n d`."""
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
_LABELS = {
    "self_attention": "self-attention",
    "recurrent": "recurrent (GRU)",
    "convolution": "convolution",
    "restricted_attention": "restricted self-attention",
}
_FITTED = 4
_SHORTEST_TIMING = 0.01


@dataclass(frozen=True)
class Cost:
    """Complexity for n tokens of width d, kernel size k of the convolution, radius r of restricted attention."""

    operations: str
    sequential_steps: str
    longest_path: str
    exponent: int
    """Exponent of n in the operations."""


COSTS = {
    "self_attention": Cost("O(n² d)", "O(1)", "O(1)", 2),
    "recurrent": Cost("O(n d²)", "O(n)", "O(n)", 1),
    "convolution": Cost("O(k n d²)", "O(1)", "O(log_k n)", 1),
    "restricted_attention": Cost("O(r n d)", "O(1)", "O(n / r)", 1),
}


def measure_layers(
    turns: int = 5, *, lengths: tuple[int, ...] = LENGTHS, width: int = 64, kernel: int = 3, radius: int = 32
) -> dict[str, Any]:
    """Measure seconds of a forward pass of every layer at every length, and the exponent of n in their growth.

    float32 on the CPU. ValueError for no turns.
    """
    check(turns >= 1, "--turns", turns, "it must be at least 1")
    layers = make_layers(width=width, kernel=kernel, radius=radius)
    fastest = {name: [float("inf")] * len(lengths) for name in layers}
    with torch.inference_mode():
        for _ in tqdm(range(turns), desc="turns", disable=None):
            for place, length in enumerate(lengths):
                tokens = torch.randn(1, length, width)
                for name, layer in layers.items():
                    fastest[name][place] = min(fastest[name][place], _seconds(layer, tokens))
    return {
        "lengths": list(lengths),
        "seconds": fastest,
        "exponents": {name: round(exponent(lengths, seconds), 3) for name, seconds in fastest.items()},
        "costs": {name: asdict(cost) for name, cost in COSTS.items()},
        "width": width,
        "kernel": kernel,
        "radius": radius,
        "turns": turns,
        "machine": machine("cpu"),
        "conventions": {
            "seconds": "one forward pass of one sequence without gradients, float32, CPU; the fastest turn",
            "exponents": f"slope of log seconds against log n, least squares over the {_FITTED} longest",
            "restricted_attention": "a token attends to those at most `radius` places away",
        },
    }


def make_layers(*, width: int, kernel: int, radius: int) -> dict[str, Layer]:
    """Build the four layers, `1 n d -> 1 n d`, with one head and random weights."""
    recurrent = nn.GRU(width, width, batch_first=True)
    convolution = nn.Conv1d(width, width, kernel, padding="same")

    def attention(tokens: Tensor) -> Tensor:
        heads = rearrange(tokens, "b n d -> b 1 n d")
        return rearrange(attend(heads, heads, heads), "b 1 n d -> b n d")

    def restricted_attention(tokens: Tensor) -> Tensor:
        heads = rearrange(tokens, "b n d -> b 1 n d")
        return rearrange(attend_locally(heads, heads, heads, radius=radius), "b 1 n d -> b n d")

    def convolve(tokens: Tensor) -> Tensor:
        return rearrange(convolution(rearrange(tokens, "b n d -> b d n")), "b d n -> b n d")

    return {
        "self_attention": attention,
        "recurrent": lambda tokens: recurrent(tokens)[0],
        "convolution": convolve,
        "restricted_attention": restricted_attention,
    }


def exponent(lengths: tuple[int, ...], seconds: list[float]) -> float:
    """Fit the slope of log seconds against log n over the longest sequences, where a call's fixed cost is small."""
    slope, _ = np.polyfit(np.log(lengths[-_FITTED:]), np.log(seconds[-_FITTED:]), 1)
    return float(slope)


def draw_layers(result: dict[str, Any], path: Path) -> None:
    """Draw the result of `measure_layers` as a PNG, with the same numbers beside it."""
    labels = {
        name: f"{_LABELS[name]}, {COSTS[name].operations}: measured n^{found:.2f}"
        for name, found in result["exponents"].items()
    }
    save_figure(layer_cost(result["lengths"], result["seconds"], labels), path, result)


def _seconds(layer: Layer, tokens: Tensor) -> float:
    """Time one call as the mean of enough calls for the clock's resolution."""
    calls, elapsed = 1, _elapsed(layer, tokens, 1)
    while elapsed < _SHORTEST_TIMING:
        calls *= 2
        elapsed = _elapsed(layer, tokens, calls)
    return elapsed / calls


def _elapsed(layer: Layer, tokens: Tensor, calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        layer(tokens)
    return time.perf_counter() - started
