"""Building blocks of the Triton attention kernels: strided tensors, block products, masks and scores.

Scores are in base 2 and float32. Notation: see `core.py`. Importing this module imports triton.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""True if triton's interpreter runs the kernels: TRITON_INTERPRET was set when triton was imported."""


class Strided(NamedTuple):
    """A tensor of four dimensions as a program sees it: where it begins, and the step along each dimension.

    An absent one begins nowhere (None). Programs ask for `start`, and take no tuples within tuples: triton 3.6 neither
    compares a tuple with None nor keeps the constants of nested ones through a loop.
    """

    start: Tensor | None
    batch: int
    head: int
    row: int
    column: int


class Sizes(NamedTuple):
    heads: int
    groups: int
    queries: int
    keys: int
    width: int
    value_width: int


class Terms(NamedTuple):
    """The terms that turn products into weights: the factor, and the optional mask, bias and dropout.

    A program takes each as an argument of its own.
    """

    factor: float
    mask: Strided
    bias: Strided
    state: Tensor | None
    dropout: float


@triton.jit
def pointers(tensor, batch, head, rows, columns):
    return tensor.start + batch * tensor.batch + head * tensor.head + rows * tensor.row + columns * tensor.column


@triton.jit
def load(tensor, batch, head, rows, columns, num_rows, num_columns):
    inside = (rows < num_rows) & (columns < num_columns)
    return tl.load(pointers(tensor, batch, head, rows, columns), mask=inside, other=0)


@triton.jit
def store(tensor, batch, head, rows, columns, num_rows, num_columns, numbers):
    inside = (rows < num_rows) & (columns < num_columns)
    tl.store(pointers(tensor, batch, head, rows, columns), numbers.to(tensor.start.dtype.element_ty), mask=inside)


@triton.jit
def dot(left, right):
    if INTERPRETED:  # it would multiply bfloat16 as the integers that have the same bits
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def program_indices(num_blocks, num_heads):
    """Block, head and sample of this program, in 64 bits so that no offset overflows."""
    program = tl.program_id(0).to(tl.int64)
    return program % num_blocks, program // num_blocks % num_heads, program // num_blocks // num_heads


@triton.jit
def allowed_pairs(mask, batch, head, queries, keys, sizes):
    allowed = (queries < sizes.queries) & (keys < sizes.keys)
    if mask.start is not None:
        place = pointers(mask, batch, head, queries.to(tl.int64), keys.to(tl.int64))  # a whole map may be large
        allowed = tl.load(place, mask=allowed, other=0) != 0
    return allowed


@triton.jit
def scores_of(products, allowed, factor, bias, batch, head, queries, keys, sizes):
    """`(factor * product + bias) / ln 2`; -inf where the mask excludes the pair."""
    scores = products * (factor * LOG2_E)
    if bias.start is not None:
        rows, columns = queries.to(tl.int64), keys.to(tl.int64)
        scores += load(bias, batch, head, rows, columns, sizes.queries, sizes.keys).to(tl.float32) * LOG2_E
    return tl.where(allowed, scores, float("-inf"))


class Tiles(NamedTuple):
    """Queries and keys of one block, and its warps and pipeline stages."""

    queries: int
    keys: int
    warps: int
    stages: int


def tiles(width: int, itemsize: int, backward: bool) -> Tiles:
    """Block sizes for heads of `width`, a power of 2: sums fit in registers, the rest in shared memory."""
    if itemsize == 4:
        return Tiles(64, 32, 4, 2) if width <= 64 else Tiles(32, 32, 8, 1) if width <= 128 else Tiles(16, 32, 8, 1)
    if width <= 64:
        return Tiles(64, 64, 4, 2) if backward else Tiles(128, 64, 4, 3)
    if width <= 128:
        return Tiles(32, 64, 4, 2) if backward else Tiles(64, 64, 4, 2)
    return Tiles(32, 32, 8, 1) if backward else Tiles(64, 32, 8, 2)


def strided(tensor: Tensor | None) -> Strided:
    return Strided(None, 0, 0, 0, 0) if tensor is None else Strided(tensor, *tensor.stride())
