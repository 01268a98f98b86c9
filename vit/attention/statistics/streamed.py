"""Statistics of the attention weights, a block of queries at a time: memory linear in tokens and in a CPU's threads.

A tile of scores is computed, turned into weights and summed while it is in the cache; a block's distances to the keys
are shared by all samples and heads. `compiled` sums a tile in one loop of torch's compiler, which writes no weights.
Scores are in units of ln 2, for powers of two are the faster ones. Entropy, in these units, is `log2 z - Σ p t` with t
the scores minus their maximum, and z = Σ 2^t. Notation: see `core.py`; `s` sets of keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import torch
from einops import repeat
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from vit.attention.backends.options import Refused, dead_rows
from vit.attention.scores import Additive, InnerProduct
from vit.attention.statistics.spec import RawStatistics, StatisticsSpec
from vit.compiling import compiler_message, has_cpp_compiler

TILE = 2**18
"""Elements of a tile per CPU thread: scores, weights and distances of about this many fit into a core's caches."""
COMPILED_TILE = 2**20
"""The same for `compiled`, which reads scores and distances twice and is called less often so (`LOG.md`)."""
_MOST_PROGRAMS = 64
_MOST_APART = 64
"""Keys whose weights `compiled` sums after its loop."""
LOG2_E = 1 / math.log(2)
LOWEST = -1e30
"""The score of a masked key; finite, so that 0 × t is 0."""


class Tile(NamedTuple):
    """One sample, some heads, some queries."""

    sample: int
    heads: slice
    rows: slice

    def select(self, tensor: Tensor) -> Tensor:
        """The tile of a tensor that broadcasts to `b h n m`: h n m."""
        sample = self.sample if tensor.shape[0] > 1 else 0
        heads = self.heads if tensor.shape[1] > 1 else slice(None)
        rows = self.rows if tensor.shape[2] > 1 else slice(None)
        return tensor[sample, heads, rows]

    def views(self, buffers: Tensor, num_keys: int) -> list[Tensor]:
        """A view of every buffer for this tile, h n m each."""
        shape = self.heads.stop - self.heads.start, self.rows.stop - self.rows.start, num_keys
        return [buffer[: math.prod(shape)].view(shape) for buffer in buffers]


class Sums(NamedTuple):
    """Sums over the keys of unnormalised weights: b h n, and b h n s, whose first set is all keys."""

    sets: Tensor
    surprise: Tensor
    self_mass: Tensor
    distance: Tensor

    def normalised(self, spec: StatisticsSpec) -> RawStatistics:
        total = self.sets[..., 0]
        part = torch.where(total > 0, total.reciprocal(), 0.0)
        entropy = torch.where(total == 0, 0.0, (total.log2() - self.surprise * part) / LOG2_E)
        return RawStatistics(
            entropy=entropy.clamp_(min=0.0),  # only rounding takes it below
            masses=self.sets[..., 1:] * part[..., None],
            self_mass=None if spec.query_offset is None else self.self_mass * part,
            distance=None if spec.space is None else self.distance * part,
        )


def streamed(query: Tensor, key: Tensor, spec: StatisticsSpec) -> RawStatistics:
    """The statistics, in float32 for half types."""
    sets = _with_every_key(query, key, spec)
    return _by_tiles(query, key, spec, partial(_sum_tile, sets=sets), tile_size=TILE, num_buffers=2)


def compiled(query: Tensor, key: Tensor, spec: StatisticsSpec) -> RawStatistics:
    """The same by `torch.compile`. `Refused` for other devices than the CPU, without a C++ compiler that works, and
    inside a `TorchDispatchMode`.
    """
    if query.device.type != "cpu":
        raise Refused("compiled", f"it was made for the CPU, not for {query.device.type}; use 'streamed'")
    if is_in_torch_dispatch_mode(include_infra_modes=False):
        rule = "torch compiles nothing inside a TorchDispatchMode, such as a count of operations or of memory"
        raise Refused("compiled", f"{rule}; use 'streamed'")
    from torch._dynamo import config  # the compiler takes a second to import
    from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit
    from torch._inductor.exc import CppCompileError

    if not has_cpp_compiler():
        raise Refused("compiled", "it needs a C++ compiler, and none was found; use 'streamed'")
    sum_tile = partial(_sum_by_loop, _split_sets(_with_every_key(query, key, spec)))
    # one program for each number of sets, type and kind of size (one, many): more than the eight of torch's default,
    # after which it would compute step by step
    with config.patch(recompile_limit=_MOST_PROGRAMS):
        try:
            return _by_tiles(query, key, spec, sum_tile, tile_size=COMPILED_TILE, num_buffers=1)
        except FailOnRecompileLimitHit:
            rule = (
                f"the calls of this process need more than {_MOST_PROGRAMS} programs, for each number of groups its own"
            )
            raise Refused("compiled", f"{rule}; use 'streamed'") from None
        except BackendCompilerFailed as error:
            if not isinstance(cause := error.inner_exception, CppCompileError):
                raise
            rule = f"{cause.cmd[0]} failed: {compiler_message(cause)}"
            raise Refused("compiled", f"{rule}; use 'streamed'") from error


def _with_every_key(query: Tensor, key: Tensor, spec: StatisticsSpec) -> Tensor:
    """The set of all keys, then those of the specification, as ones and zeros: s m."""
    return torch.cat((spec.sets.new_ones(1, key.shape[2]), spec.sets)).to(_summed_dtype(query))


def _summed_dtype(query: Tensor) -> torch.dtype:
    return torch.promote_types(query.dtype, torch.float32)


def _by_tiles(
    query: Tensor,
    key: Tensor,
    spec: StatisticsSpec,
    sum_tile: Callable[..., tuple[Tensor, Tensor, Tensor | None, Tensor]],
    *,
    tile_size: int,
    num_buffers: int,
) -> RawStatistics:
    """`sum_tile` takes the scores, h n m, a buffer of that shape for each further one, and the distances."""
    dtype, (b, h, n), m = _summed_dtype(query), query.shape[:3], key.shape[2]
    write_scores, cost = _score_writer(query, key, spec, dtype)
    sums = Sums(query.new_zeros(b, h, n, 1 + len(spec.sets), dtype=dtype), *query.new_zeros(3, b, h, n, dtype=dtype))
    threads = torch.get_num_threads() if query.device.type == "cpu" else 1
    num_rows, num_heads = _tile_size(h, n, m * cost, spec.block_size, tile_size * threads)
    buffers = query.new_empty(num_buffers, num_heads * num_rows * m, dtype=dtype)
    of_distances = query.new_empty(0 if spec.space is None else spec.space.num_buffers, num_rows, m, dtype=dtype)
    for rows in _slices(n if m else 0, num_rows):
        of_distances = of_distances[:, : rows.stop - rows.start]  # the last tile may have fewer rows
        distances = None if spec.space is None else spec.space.distances(rows, of_distances)  # n m
        for sample, heads in product(range(b), _slices(h, num_heads)):
            tile = Tile(sample, heads, rows)
            views = tile.views(buffers, m)
            scores = views[0]
            write_scores(tile, scores)
            dead = None
            if spec.options.bias is not None:
                scores.add_(tile.select(spec.options.bias), alpha=LOG2_E)
                scores.clamp_(min=LOWEST)  # a type's lowest number, which some take for a mask, overflows
            if spec.options.mask is not None:
                mask = tile.select(spec.options.mask)
                scores.masked_fill_(~mask, LOWEST)
                dead = dead_rows(mask)
            if spec.query_offset is not None:
                own = scores.diagonal(spec.query_offset + rows.start, dim1=-2, dim2=-1).clone()
            sums.sets[tile], sums.surprise[tile], distance, largest = sum_tile(*views, distances=distances)
            if distance is not None:
                sums.distance[tile] = distance
            if spec.query_offset is not None:
                sums.self_mass[tile] = (own - largest).exp2_()
            if dead is not None:
                sums.sets[tile].masked_fill_(dead, 0.0)
    return sums.normalised(spec)


def _sum_tile(
    scores: Tensor, weights: Tensor, *, sets: Tensor, distances: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Sums of the unnormalised weights (h n s), of weight times score, and of weight times distance; the largest score.

    h n each but the first. Both `scores` and `weights` are overwritten.
    """
    largest = scores.amax(dim=-1, keepdim=True)
    scores -= largest
    torch.exp2(scores, out=weights)
    masses = weights @ sets.T  # five times slower with the sets in columns, `sets` m s
    surprise = scores.mul_(weights).sum(dim=-1)
    distance = None
    if distances is not None:  # one product for each query: all heads share its distances
        distance = (distances[:, None] @ weights.permute(1, 2, 0))[:, 0].T
    return masses, surprise, distance, largest[..., 0]


class SplitSets(NamedTuple):
    """Sets of keys, each made of sums over all keys, which the compiled loop takes, and of single keys.

    A set that differs from another one in the class token alone then needs no sum over all keys of its own.
    """

    looped: Tensor
    """Sets that the loop sums, l m."""
    apart: Tensor
    """Indices of the single keys, a."""
    members: Tensor
    """The looped sets and single keys that each set is made of, (l + a) s."""


def _split_sets(sets: Tensor) -> SplitSets:
    """Split `sets`, s m: the keys in the commonest combination of sets are summed together, all others are single.

    Where more than `_MOST_APART` would be single, every set is summed as it is.
    """
    as_they_are = SplitSets(sets, torch.zeros(0, dtype=torch.long), torch.eye(len(sets)).to(sets))
    if sets.shape[1] == 0:
        return as_they_are
    kinds, of_key, counts = sets.unique(dim=1, return_inverse=True, return_counts=True)  # s kinds, m
    common = counts.argmax()
    apart = (of_key != common).nonzero()[:, 0]
    if len(apart) > _MOST_APART:
        return as_they_are
    return SplitSets(
        (of_key == common)[None].to(sets), apart, torch.cat((kinds[:, common, None], sets[:, apart]), dim=1).T
    )


def _sum_by_loop(
    sets: SplitSets, scores: Tensor, distances: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """`_sum_tile` by the compiled loop: nothing is overwritten."""
    looped, surprise, distance, largest = _compiled_sums()(scores, sets.looped, distances)
    single = (scores[..., sets.apart] - largest).exp2()  # h n a
    return torch.cat((looped, single), dim=-1) @ sets.members, surprise, distance, largest[..., 0]


def _fused_sums(scores: Tensor, sets: Tensor, distances: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Sums as those of `_sum_tile`, in one expression for the compiler; the largest score is h n 1."""
    largest = scores.amax(dim=-1, keepdim=True)
    below = scores - largest
    rows = below.exp2()
    masses = torch.stack([(rows * each).sum(dim=-1) for each in sets], dim=-1)
    distance = None if distances is None else (rows * distances).sum(dim=-1)
    return masses, (rows * below).sum(dim=-1), distance, largest


@cache
def _compiled_sums() -> Callable[..., tuple[Tensor, Tensor, Tensor | None, Tensor]]:
    return torch.compile(_fused_sums, dynamic=True, fullgraph=True)


def _score_writer(
    query: Tensor, key: Tensor, spec: StatisticsSpec, dtype: torch.dtype
) -> tuple[Callable[[Tile, Tensor], None], int]:
    """A function that writes a tile of scores, and how many numbers it allocates per score."""
    score, scale = spec.options.score, spec.options.scale
    if isinstance(score, Additive):
        query, key, score = score.query(query), score.key(key), score.projected
    key = repeat(key, "b g m d -> b (g r) m d", r=query.shape[1] // key.shape[1])
    if not isinstance(score, InnerProduct):  # the score's definition, in the type of the vectors

        def write(tile: Tile, scores: Tensor) -> None:
            one = slice(tile.sample, tile.sample + 1)
            scores.copy_(score(query[one, tile.heads, tile.rows], key[one, tile.heads], scale)[0]).mul_(LOG2_E)

        return write, key.shape[3]
    left, right, factor = score.vectors(query.to(dtype), key.to(dtype), scale)
    right = right.transpose(2, 3)  # b h d m

    def multiply(tile: Tile, scores: Tensor) -> None:
        torch.matmul(left[tile] * (factor * LOG2_E), right[tile.sample, tile.heads], out=scores)

    return multiply, 1


def _tile_size(h: int, n: int, row: int, block_size: int | None, limit: int) -> tuple[int, int]:
    """Queries and heads of a tile of at most about `limit` numbers, whose rows allocate `row` each."""
    num_rows = max(1, min(n, block_size or limit // max(1, row)))
    return num_rows, max(1, min(h, limit // max(1, num_rows * row)))


def _slices(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]
