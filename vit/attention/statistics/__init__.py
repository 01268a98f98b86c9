"""What the attention weights say, for every head and query, without the map of all of them.

Expected distance to the keys, entropy, mass on chosen keys and on the query itself. Letters: see `attend.py`. This room
does not know what a class token or a patch is: it is told which keys to sum, and where tokens stand.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vit.attention.attend import DOT_PRODUCT, check_shapes, four_dimensions
from vit.attention.backends import Refused, Request
from vit.attention.scores import Score
from vit.attention.statistics.fused import fused
from vit.attention.statistics.question import Answers, AttentionStatistics, Question, sets_of_keys
from vit.attention.statistics.space import space_between
from vit.attention.statistics.streamed import streamed
from vit.config import check, nearest

STATISTICS_BACKENDS = {"streamed": streamed, "triton": fused}


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
    (n, m). A token without a place (CLS, register) is a row of NaN there; a row or column of NaN in the table. Every
    one of `key_groups` is boolean, (m,). As with a key cache, the queries are the last n of the keys, unless `cross`
    says that they are of another sequence; then there is no mass on oneself, and `coordinates` need
    `query_coordinates` (n, k).

    Half types are summed in float32, and so are the answers. `streamed` works on `block_size` queries at a time,
    memory linear in tokens (without it on as many as a CPU's threads keep up with: their number changes the memory, and
    the last bits); `triton` is one kernel; `auto` takes it on a CUDA device for what it does not refuse.
    Raises ValueError for what does not fit together and for a backend that cannot do what is asked.
    """
    check_shapes(query, key, key, score)
    num_queries, num_keys = query.shape[2], key.shape[2]
    check(block_size is None or block_size > 0, "block_size", block_size, "it must be at least 1")
    check(cross or num_queries <= num_keys, "cross", cross, f"{num_queries} queries are not among {num_keys} keys")
    space = space_between(
        num_queries,
        num_keys,
        coordinates=coordinates,
        query_coordinates=query_coordinates,
        distances=distances,
        cross=cross,
        device=query.device,
    )
    groups = key_groups or {}
    mask, bias = four_dimensions("mask", mask, query, key), four_dimensions("bias", bias, query, key)
    if bias is not None and not bool(bias.isfinite().all()):
        raise ValueError("bias: infinite or NaN entries are not valid: a boolean mask says what is forbidden")
    question = Question(
        request=Request(score=score, scale=scale, mask=mask, bias=bias),
        names=tuple(groups),
        sets=sets_of_keys(space, groups, key),
        space=space,
        first_own=None if cross else num_keys - num_queries,
        block_size=block_size,
    )
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        return question.name(_answer(query, key, question, backend))


def _answer(query: Tensor, key: Tensor, question: Question, backend: str) -> Answers:
    if backend == "auto":
        if query.device.type == "cuda":
            try:
                return fused(query, key, question)
            except Refused:
                pass
        return streamed(query, key, question)
    if backend not in STATISTICS_BACKENDS:
        rule = nearest(backend, ["auto", *STATISTICS_BACKENDS])
        raise ValueError(f"backend: {backend!r} is not valid: {rule}")
    return STATISTICS_BACKENDS[backend](query, key, question)


__all__ = ["STATISTICS_BACKENDS", "AttentionStatistics", "attention_statistics"]
