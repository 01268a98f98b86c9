"""The Triton kernel of the statistics: one pass over the keys, without the map of all weights.

An online softmax that accumulates the sum of the weights and the weighted sums of each statistic; all are rescaled when
a higher score appears (Milakov and Gimelshein 2018). Scores are in base 2, all sums in float32. Notation: see
`core.py`; `s` sets of keys. `fused` checks the inputs. Importing this module imports triton.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vit.attention.backends.triton_blocks import (
    Sizes,
    Strided,
    Tiles,
    allowed_pairs,
    dot,
    load,
    program_indices,
    scores_of,
    strided,
)
from vit.attention.statistics.space import Space
from vit.attention.statistics.spec import RawStatistics, StatisticsSpec

LN_2 = tl.constexpr(0.6931471805599453)


class Distances(NamedTuple):
    """A table, n m, or coordinates of queries and keys, n k and m k of float32, contiguous; or none of these.

    A program takes each as an argument of its own, as triton 3.6 needs it (`Strided`).
    """

    table: Strided
    of_queries: Tensor | None
    of_keys: Tensor | None


class Outputs(NamedTuple):
    """Results in float32: b h n s, and b h n each; those not requested stay zero."""

    masses: Tensor
    entropy: Tensor
    self_mass: Tensor
    distance: Tensor


@triton.jit
def _distances(table, places_of_queries, places_of_keys, queries, keys, sizes, DIMENSIONS: tl.constexpr):
    """Distances of a block of pairs; 0 where either has no position, which is NaN."""
    if table.start is not None:
        numbers = load(table, 0, 0, queries, keys, sizes.queries, sizes.keys).to(tl.float32)
    else:
        squares = tl.zeros_like((queries + keys).to(tl.float32))
        for axis in tl.static_range(DIMENSIONS):
            starts = places_of_queries + axis, places_of_keys + axis
            of_queries = tl.load(starts[0] + queries * DIMENSIONS, mask=queries < sizes.queries, other=0.0)
            of_keys = tl.load(starts[1] + keys * DIMENSIONS, mask=keys < sizes.keys, other=0.0)
            squares += (of_queries - of_keys) * (of_queries - of_keys)
        numbers = tl.sqrt(squares)
    return tl.where(numbers == numbers, numbers, 0.0)


@triton.jit
def _statistics(
    query, key, factor, mask, bias, sizes, sets, table, places_of_queries, places_of_keys, query_offset, outputs,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
    SETS: tl.constexpr, SETS_PADDED: tl.constexpr, DISTANCES: tl.constexpr, DIMENSIONS: tl.constexpr,
):  # fmt: skip
    block, head, batch = program_indices(tl.cdiv(sizes.queries, QUERIES), sizes.heads)
    group = head // (sizes.heads // sizes.groups)
    widths, of_set = tl.arange(0, WIDTH)[None, :], tl.arange(0, SETS_PADDED)[None, :]
    rows = block * QUERIES + tl.arange(0, QUERIES)
    queries, inside = rows[:, None], rows < sizes.queries
    q = load(query, batch, head, queries, widths, sizes.queries, sizes.width)
    highest = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    surprise = tl.zeros((QUERIES,), tl.float32)
    self_mass = tl.zeros((QUERIES,), tl.float32)
    distance = tl.zeros((QUERIES,), tl.float32)
    masses = tl.zeros((QUERIES, SETS_PADDED), tl.float32)
    for start in range(0, sizes.keys, KEYS):
        columns = start + tl.arange(0, KEYS)
        keys = columns[None, :]
        allowed = allowed_pairs(mask, batch, head, queries, keys, sizes)
        if mask.start is None or tl.max(allowed.to(tl.int32).ravel(), axis=0) > 0:
            k = load(key, batch, group, columns[:, None], widths, sizes.keys, sizes.width)
            scores = scores_of(dot(q, tl.trans(k)), allowed, factor, bias, batch, head, queries, keys, sizes)
            above = tl.maximum(highest, tl.max(scores, axis=1))
            # a query that was allowed nothing yet has no highest score: anything finite keeps NaN away
            level = tl.where(above == float("-inf"), 0.0, above)
            risen = tl.where(highest == float("-inf"), 0.0, highest - level)
            shrink = tl.exp2(highest - level)
            below = tl.where(allowed, scores - level[:, None], 0.0)
            weights = tl.where(allowed, tl.exp2(below), 0.0)
            surprise = (surprise + risen * total) * shrink + tl.sum(weights * below, axis=1)
            total = total * shrink + tl.sum(weights, axis=1)
            if query_offset is not None:
                on_self = tl.where(keys == queries + query_offset, weights, 0.0)
                self_mass = self_mass * shrink + tl.sum(on_self, axis=1)
            if DISTANCES:
                numbers = _distances(table, places_of_queries, places_of_keys, queries, keys, sizes, DIMENSIONS)
                distance = distance * shrink + tl.sum(weights * numbers, axis=1)
            masses *= shrink[:, None]
            for index in tl.static_range(SETS):
                member = tl.load(sets + index * sizes.keys + columns, mask=columns < sizes.keys, other=0.0)
                part = tl.sum(weights * member[None, :], axis=1)
                masses += tl.where(of_set == index, part[:, None], 0.0)
            highest = above
    total = tl.where(total == 0.0, 1.0, total)
    entropy = (tl.log2(total) - surprise / total) * LN_2
    entropy = tl.where(entropy < 0.0, 0.0, entropy)  # only rounding takes it below; `maximum` would hide NaN
    of_row = (batch * sizes.heads + head) * sizes.queries + rows
    tl.store(outputs.entropy + of_row, entropy, mask=inside)
    if query_offset is not None:
        tl.store(outputs.self_mass + of_row, self_mass / total, mask=inside)
    if DISTANCES:
        tl.store(outputs.distance + of_row, distance / total, mask=inside)
    to = outputs.masses + of_row[:, None] * SETS + of_set
    tl.store(to, masses / total[:, None], mask=inside[:, None] & (of_set < SETS))


def _tiles(width: int, itemsize: int) -> Tiles:
    """Blocks whose sums ptxas keeps in registers for compute capability 9.0, except with both mask and bias."""
    if itemsize == 4:
        return Tiles(32, 32, 8, 1) if width <= 128 else Tiles(16, 32, 8, 1)
    return Tiles(64, 64, 8, 2) if width <= 64 else Tiles(64, 32, 8, 2)


def compute(query: Tensor, key: Tensor, factor: float, spec: StatisticsSpec) -> RawStatistics:
    """The statistics for the scores `factor * queryᵀkey`."""
    options, space, num_sets = spec.options, spec.space, len(spec.sets)
    masses = query.new_zeros(*query.shape[:3], num_sets, dtype=torch.float32)
    entropy, self_mass, distance = query.new_zeros(3, *query.shape[:3], dtype=torch.float32)
    (b, h, n, d), (g, m) = query.shape, key.shape[1:3]
    mask, bias = (strided(None if t is None else t.expand(b, h, n, m)) for t in (options.mask, options.bias))
    width = max(16, triton.next_power_of_2(d))
    queries, keys, warps, stages = _tiles(width, query.element_size())
    if query.numel() > 0:
        _statistics[(b * h * triton.cdiv(n, queries),)](
            strided(query),
            strided(key),
            factor,
            mask,
            bias,
            Sizes(h, g, n, m, d, d),
            spec.sets.float(),
            *_distance_inputs(space),
            spec.query_offset,
            Outputs(masses, entropy, self_mass, distance),
            QUERIES=queries,
            KEYS=keys,
            WIDTH=width,
            SETS=num_sets,
            SETS_PADDED=triton.next_power_of_2(max(1, num_sets)),
            DISTANCES=space is not None,
            DIMENSIONS=0 if space is None or space.coordinates is None else space.coordinates[0].shape[1],
            num_warps=warps,
            num_stages=stages,
        )
    return RawStatistics(
        entropy=entropy,
        masses=masses,
        self_mass=None if spec.query_offset is None else self_mass,
        distance=None if space is None else distance,
    )


def _distance_inputs(space: Space | None) -> Distances:
    if space is None:
        return Distances(strided(None), None, None)
    if space.table is not None:
        return Distances(strided(space.table.expand(1, 1, -1, -1)), None, None)
    assert space.coordinates is not None
    return Distances(strided(None), *(coordinates.float().contiguous() for coordinates in space.coordinates))
