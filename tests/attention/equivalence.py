"""The equivalence matrix: the cells for every backend, and the comparison of its results.

`python -m tests.attention.equivalence` writes docs/attention_backends.md; a test keeps it up to date.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from vit.attention import masks
from vit.attention.backends import BACKENDS, Refused, flex
from vit.attention.core import attend
from vit.attention.scores import Additive, Constant, Cosine, GaussianKernel, ScaledDotProduct, Score
from vit.randomness import SampleRandom

DOCUMENT = Path(__file__).parents[2] / "docs" / "attention_backends.md"

BATCH, HEADS, WIDTH, VALUE_WIDTH = 2, 3, 7, 5
QUERIES = {"self": 13, "cross": 11, "cached": 3, "grouped": 13}
KEYS = {"self": 13, "cross": 17, "cached": 13, "grouped": 13}
GROUPS = {"grouped": 2}
"""Prime sizes; grouped heads are 6 over 2."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TOLERANCE = {"fp32": 5e-6, "bf16": 2e-2, "fp16": 3e-3}
"""Largest difference from `reference` in float64 on the same rounded inputs, as a part of the largest entry."""


def _segments(n: int, m: int) -> Tensor:
    keys = torch.arange(m) // 4
    return masks.segments(keys[m - n :].expand(BATCH, -1) if n <= m else keys.expand(BATCH, -1), keys.expand(BATCH, -1))


MASKS: dict[str, Callable[[int, int], Tensor | None]] = {
    "none": lambda _n, _m: None,
    "padding (b,)": lambda _n, m: masks.padding(torch.tensor([m - 4, m]), m),
    "padding (b, n)": lambda n, m: masks.padding(torch.arange(1, BATCH * n + 1).view(BATCH, n) % m + 1, m),
    "causal": lambda n, m: masks.causal(n, m),
    "window": lambda n, m: masks.window(n, 2, m),
    "segments": _segments,
    "causal & padding": lambda n, m: masks.causal(n, m) & masks.padding(torch.tensor([m - 4, m]), m),
    "rows without keys": lambda n, m: masks.padding(torch.arange(BATCH * n).view(BATCH, n) % 5, m),
    "any boolean": lambda n, m: torch.rand(BATCH, 1, n, m, generator=torch.Generator().manual_seed(3)) < 0.5,
}
SHAPES = tuple(QUERIES)
SCORES = ("scaled dot product", "cosine", "constant", "additive", "Gaussian kernel")


def score_of(name: str, dtype: torch.dtype) -> Score:
    if name == "additive":
        torch.manual_seed(5)
        return Additive(WIDTH, WIDTH, WIDTH).to(dtype).requires_grad_(False)
    plain: dict[str, Score] = {
        "scaled dot product": ScaledDotProduct(),
        "cosine": Cosine(),
        "constant": Constant(),
        "Gaussian kernel": GaussianKernel(),
    }
    return plain[name]


@dataclass(frozen=True)
class Cell:
    """One configuration for one backend."""

    backend: str
    mask: str = "none"
    shape: str = "self"
    dtype: str = "fp32"
    score: str = "scaled dot product"
    bias: str = "none"
    """`fixed`, or `learned`: with a gradient."""
    value_width: int = WIDTH
    dropout: bool = False

    def __str__(self) -> str:
        return f"{self.backend} · {self.mask} · {self.shape} · {self.dtype}"


def matrix() -> Iterator[Cell]:
    """Every backend × mask × shape × type."""
    for backend, mask, shape, dtype in product(BACKENDS, MASKS, SHAPES, DTYPES):
        yield Cell(backend, mask, shape, dtype)


def tensors(cell: Cell) -> dict[str, Tensor]:
    """Query, key and value of a cell (and bias), already rounded to its type, in float64."""
    generator = torch.Generator().manual_seed(7)
    groups = GROUPS.get(cell.shape, HEADS)
    heads = HEADS * groups if cell.shape == "grouped" else HEADS
    n, m = QUERIES[cell.shape], KEYS[cell.shape]
    shapes = {"query": (BATCH, heads, n, WIDTH), "key": (BATCH, groups, m, WIDTH)}
    shapes["value"] = (BATCH, groups, m, cell.value_width)
    if cell.bias != "none":
        shapes["bias"] = (1, heads, n, m)
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: tensor.to(DTYPES[cell.dtype]).double() for name, tensor in drawn.items()}


def ask(cell: Cell, inputs: dict[str, Tensor], gradient: bool) -> list[Tensor]:
    """The result, and if requested the gradients of a fixed sum of it."""
    n, m = QUERIES[cell.shape], KEYS[cell.shape]
    moving = ("query", "key", "value", *(["bias"] if cell.bias == "learned" else []))
    inputs = {name: t.detach().requires_grad_(gradient and name in moving) for name, t in inputs.items()}
    rng = SampleRandom.at(0, 0, torch.arange(BATCH)) if cell.dropout else None
    answer = attend(
        inputs["query"],
        inputs["key"],
        inputs["value"],
        mask=MASKS[cell.mask](n, m),
        bias=inputs.get("bias"),
        score=score_of(cell.score, inputs["query"].dtype),
        dropout=0.3 if cell.dropout else 0.0,
        rng=rng,
        backend=cell.backend,
    )
    if not gradient:
        return [answer]
    slope = torch.linspace(-1, 1, answer.numel(), dtype=torch.float64).reshape(answer.shape).to(answer.dtype)
    wanted = [inputs[name] for name in moving]
    return [answer.detach(), *torch.autograd.grad(answer, wanted, slope, materialize_grads=True)]


@contextmanager
def uncompiled_flex() -> Iterator[None]:
    """FlexAttention in torch's unfused form: the same mask and score functions without a minute of compiling.

    What is compiled is judged in test_flex.py.
    """
    with patch.object(flex, "_compiled", lambda _device: flex._flex_attention()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        yield


def largest_difference(cell: Cell, gradient: bool) -> float:
    """Difference from `reference` in float64, over the largest entry; `Refused` where the backend refuses."""
    inputs = tensors(cell)
    found = ask(cell, {name: tensor.to(DTYPES[cell.dtype]) for name, tensor in inputs.items()}, gradient)
    expected = ask(replace(cell, backend="reference"), inputs, gradient)
    differences = [
        (ours.double() - theirs).abs().max() / theirs.abs().max().clamp(min=1e-6)
        for ours, theirs in zip(found, expected, strict=True)
    ]
    return float(torch.stack(differences).max())  # NaN where any is: Python's own `max` would pass over it


# ------------------------------------------------------------------ the document

FEATURES: dict[str, dict[str, Any]] = {
    **{f"mask: {name}": {"mask": name} for name in MASKS},
    **{f"shape: {name}": {"shape": name} for name in SHAPES},
    **{f"type: {name}": {"dtype": name} for name in DTYPES},
    "values of another width": {"value_width": VALUE_WIDTH},
    "bias": {"bias": "fixed"},
    "learned bias": {"bias": "learned"},
    "dropout by sample": {"dropout": True},
    **{f"score: {name}": {"score": name} for name in SCORES},
}


def outcome(cell: Cell) -> tuple[str, str]:
    """A backend's result for a cell, or its refusal."""
    said = ""
    for gradient, mark in ((True, "yes"), (False, "forward only")):
        try:
            ask(cell, {name: t.to(DTYPES[cell.dtype]) for name, t in tensors(cell).items()}, gradient)
        except Refused as refused:
            said = said or str(refused).partition(" is not valid: ")[2]
        else:
            return mark, said
    return "refuses", said


def document() -> str:
    """The table as Markdown, for the machine it runs on."""
    header = ["asked for", *(f"`{name}`" for name in BACKENDS)]
    lines = [" | ".join(header), " | ".join("---" for _ in header)]
    reasons: dict[str, None] = {}
    for feature, changes in FEATURES.items():
        marks = []
        for backend in BACKENDS:
            mark, said = outcome(Cell(backend, **changes))
            marks.append(mark)
            if said:
                reasons[f"`{backend}`: {said}"] = None
        lines.append(" | ".join([feature, *marks]))
    table = "\n".join(f"| {line} |" for line in lines)
    whys = "\n".join(f"- {reason}" for reason in reasons)
    cells = len(BACKENDS) * len(MASKS) * len(SHAPES) * len(DTYPES)
    return (
        "# What the attention backends do\n\n"
        "Generated by `python -m tests.attention.equivalence` on a CPU; `triton` in its interpreter, `flex` not\n"
        f"compiled. `yes`: forward and gradients equal `reference` in float64 within the tolerances of the {cells}\n"
        "cells of `tests/attention/test_equivalence.py` (backend × mask × shape × type).\n\n"
        f"{table}\n\nWhat a backend says when it refuses; `auto` then takes another:\n\n{whys}\n"
    )


if __name__ == "__main__":
    with uncompiled_flex():
        DOCUMENT.write_text(document())
