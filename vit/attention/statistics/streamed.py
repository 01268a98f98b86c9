"""Statistics of the attention weights, a block of queries at a time: memory linear in tokens and in a CPU's threads.

A tile of weights is made, asked and overwritten while it is in the cache; the distances of a block of queries serve
every sample and head. Entropy is `log z - Σ p t` of t, the scores less the highest, and z = Σ exp t.
Letters: see `attend.py`; `s` sets of keys. This room does not know what the sets mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import torch
from einops import repeat
from torch import Tensor

from vit.attention.backends.request import Request, dead_rows
from vit.attention.scores import Additive, InnerProduct
from vit.attention.statistics.question import Answers, Question

TILE = 2**18
"""Numbers of a tile for each thread of a CPU: about what its core's caches hold of scores, weights and distances."""
LOWEST = -1e30
"""The score of a key that the mask does not allow; finite, so that 0 × t is 0."""


class Tile(NamedTuple):
    """One sample, some heads, some queries."""

    sample: int
    heads: slice
    rows: slice

    def of(self, tensor: Tensor) -> Tensor:
        """Its part of what broadcasts to `b h n m`: h n m."""
        sample = self.sample if tensor.shape[0] > 1 else 0
        heads = self.heads if tensor.shape[1] > 1 else slice(None)
        rows = self.rows if tensor.shape[2] > 1 else slice(None)
        return tensor[sample, heads, rows]

    def views(self, buffers: Tensor, num_keys: int) -> tuple[Tensor, Tensor]:
        """Room for it in both buffers, h n m each."""
        shape = self.heads.stop - self.heads.start, self.rows.stop - self.rows.start, num_keys
        first, second = buffers[:, : math.prod(shape)]
        return first.view(shape), second.view(shape)


class Sums(NamedTuple):
    """Over the keys, of weights that do not yet sum to 1: b h n, and b h n s, of which the first set is all keys."""

    sets: Tensor
    surprise: Tensor
    own: Tensor
    distance: Tensor

    def normalised(self, question: Question) -> Answers:
        total = self.sets[..., 0]
        part = torch.where(total > 0, total.reciprocal(), 0.0)
        entropy = torch.where(total > 0, total.log() - self.surprise * part, 0.0)
        return Answers(
            entropy=entropy.clamp_(min=0.0),  # rounding alone takes it below
            masses=self.sets[..., 1:] * part[..., None],
            own=None if question.first_own is None else self.own * part,
            distance=None if question.space is None else self.distance * part,
        )


def streamed(query: Tensor, key: Tensor, question: Question) -> Answers:
    """The answers, in float32 for half types."""
    dtype, (b, h, n), m = torch.promote_types(query.dtype, torch.float32), query.shape[:3], key.shape[2]
    write_scores, cost = _scorer(query, key, question, dtype)
    every_key = question.sets.new_ones(1, m)
    sets = torch.cat((every_key, question.sets)).to(dtype).T  # m s
    sums = Sums(query.new_zeros(b, h, n, sets.shape[1], dtype=dtype), *query.new_zeros(3, b, h, n, dtype=dtype))
    threads = torch.get_num_threads() if query.device.type == "cpu" else 1
    num_rows, num_heads = _tile_size(h, n, m * cost, question.block_size, threads)
    buffers = query.new_empty(2, num_heads * num_rows * m, dtype=dtype)
    for rows in _slices(n if m else 0, num_rows):
        distances = None if question.space is None else question.space.block(rows, dtype)  # n m
        for sample, heads in product(range(b), _slices(h, num_heads)):
            tile = Tile(sample, heads, rows)
            scores, weights = tile.views(buffers, m)
            write_scores(tile, scores)
            dead = _bias_and_mask(scores, tile, question.request)
            _ask(scores, weights, tile, sets, distances, question.first_own, sums)
            if dead is not None:
                sums.sets[tile].masked_fill_(dead, 0.0)
    return sums.normalised(question)


def _ask(
    scores: Tensor,
    weights: Tensor,
    tile: Tile,
    sets: Tensor,
    distances: Tensor | None,
    first_own: int | None,
    sums: Sums,
) -> None:
    """Writes the sums over one tile, h n m; nothing is left of its scores."""
    scores -= scores.amax(dim=-1, keepdim=True)
    torch.exp(scores, out=weights)
    sums.sets[tile] = weights @ sets
    sums.surprise[tile] = scores.mul_(weights).sum(dim=-1)
    if distances is not None:
        sums.distance[tile] = torch.mul(weights, distances, out=scores).sum(dim=-1)
    if first_own is not None:
        sums.own[tile] = weights.diagonal(first_own + tile.rows.start, dim1=-2, dim2=-1)


def _bias_and_mask(scores: Tensor, tile: Tile, request: Request) -> Tensor | None:
    """Written into the scores. Gives the queries that may attend to nothing, h n 1."""
    if request.bias is not None:
        scores += tile.of(request.bias)
    if request.mask is None:
        return None
    mask = tile.of(request.mask)
    scores.masked_fill_(~mask, LOWEST)
    return dead_rows(mask)


def _scorer(
    query: Tensor, key: Tensor, question: Question, dtype: torch.dtype
) -> tuple[Callable[[Tile, Tensor], None], int]:
    """What writes a tile of scores, and how many numbers it needs for one. What no product gives, the score itself
    gives, in the type of the vectors.
    """
    score, scale = question.request.score, question.request.scale
    if isinstance(score, Additive):
        query, key, score = score.query(query), score.key(key), score.projected
    key = repeat(key, "b g m d -> b (g r) m d", r=query.shape[1] // key.shape[1])
    if not isinstance(score, InnerProduct):

        def write(tile: Tile, scores: Tensor) -> None:
            one = slice(tile.sample, tile.sample + 1)
            scores.copy_(score(query[one, tile.heads, tile.rows], key[one, tile.heads], scale)[0])

        return write, key.shape[3]
    left, right, factor = score.vectors(query.to(dtype), key.to(dtype), scale)
    right = right.transpose(2, 3)  # b h d m

    def multiply(tile: Tile, scores: Tensor) -> None:
        torch.matmul(left[tile] * factor, right[tile.sample, tile.heads], out=scores)

    return multiply, 1


def _tile_size(h: int, n: int, row: int, block_size: int | None, threads: int) -> tuple[int, int]:
    """Queries and heads of a tile whose rows need `row` numbers each."""
    room = TILE * threads
    num_rows = max(1, min(n, block_size or room // max(1, row)))
    return num_rows, max(1, min(h, room // max(1, num_rows * row)))


def _slices(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]
