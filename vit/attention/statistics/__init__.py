"""Statistics of the attention weights, for every head and query, without materializing the map.

Expected distance to the keys, entropy, mass on groups of keys and on the query itself. The caller gives the groups and
the tokens' coordinates. Notation: see `core.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vit.attention.backends import AttentionOptions
from vit.attention.core import DOT_PRODUCT, as_4d, check_scale, check_shapes
from vit.attention.scores import Score
from vit.attention.statistics import fused, streamed
from vit.attention.statistics.space import build_space
from vit.attention.statistics.spec import AttentionStatistics, StatisticsSpec, key_sets
from vit.config import check, nearest

STATISTICS_BACKENDS = {"streamed": streamed.streamed, "compiled": streamed.compiled, "triton": fused.fused}


def attention_statistics(
    query: Tensor,
    key: Tensor,
    *,
    coordinates: Tensor | None = None,
    query_coordinates: Tensor | None = None,
    distances: Tensor | None = None,
    key_groups: Mapping[str, Tensor] | None = None,
    cross: bool = False,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    score: Score = DOT_PRODUCT,
    scale: float | None = None,
    block_size: int | None = None,
    backend: str = "auto",
) -> AttentionStatistics:
    """Statistics of `softmax(score + bias)`, each b h n: `b h n d, b g m e` and what `attend` takes. No gradients.

    Distances are Euclidean between `coordinates` (m, k) of the tokens, in their unit, or given as a table `distances`
    (n, m). A token without a position (CLS, register) has NaN coordinates, or a row or column of NaN in the table. Each
    of `key_groups` is boolean, (m,). As with a key cache, the queries are the last n of the keys, unless `cross` says
    that they belong to another sequence; then `self_mass` is None, and `coordinates` need `query_coordinates` (n, k).

    Half types are summed and returned in float32. `streamed` works on `block_size` queries at a time, in memory linear
    in tokens (by default, as many as suit the CPU's threads: their number changes the memory, and the last bits).
    `compiled` does the same with torch's compiler: faster on many tokens, after some seconds of compiling, on a CPU and
    with a C++ compiler. `triton` is one kernel, for CUDA devices (from about 1,000 tokens on it is faster than the map
    of all weights). Both are used only when named. Raises ValueError for arguments that contradict each other and for a
    backend that does not support them.
    """
    check_shapes(query, key, key, score)
    num_queries, num_keys = query.shape[2], key.shape[2]
    check(block_size is None or block_size > 0, "block_size", block_size, "it must be at least 1")
    check(cross or num_queries <= num_keys, "cross", cross, f"{num_queries} queries are not among {num_keys} keys")
    space = build_space(
        num_queries,
        num_keys,
        coordinates=coordinates,
        query_coordinates=query_coordinates,
        distances=distances,
        cross=cross,
        device=query.device,
    )
    groups = key_groups or {}
    mask, bias = as_4d("mask", mask, query, key), as_4d("bias", bias, query, key)
    spec = StatisticsSpec(
        options=_checked(AttentionOptions(score=score, scale=scale, mask=mask, bias=bias)),
        names=tuple(groups),
        sets=key_sets(space, groups, key),
        space=space,
        query_offset=None if cross else num_keys - num_queries,
        block_size=block_size,
    )
    choices = ["auto", *STATISTICS_BACKENDS]
    check(backend in choices, "backend", backend, nearest(backend, choices))
    compute = STATISTICS_BACKENDS["streamed" if backend == "auto" else backend]
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        return spec.name(compute(query, key, spec))


def _checked(options: AttentionOptions) -> AttentionOptions:
    """ValueError for a scale or a bias that is not finite."""
    check_scale(options.scale)
    if options.bias is not None and not bool(options.bias.isfinite().all()):
        raise ValueError("bias: infinite or NaN entries are not valid: exclude keys by a boolean mask")
    return options


__all__ = ["STATISTICS_BACKENDS", "AttentionStatistics", "attention_statistics"]
