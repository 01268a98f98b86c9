"""The Triton kernels of the `triton` backend: attention and its gradients, without the map of all weights.

A program takes a block of queries and iterates over the keys with an online softmax (Milakov and Gimelshein 2018); the
backward pass recomputes the weights from the logarithm of their sum (FlashAttention-2: Dao 2023). Blocks of keys that
no query of the block may attend to are skipped. Scores are in base 2, all sums in float32.

Notation: see `core.py`. `triton.py` has the checks and autograd. Importing this module imports triton.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vit.attention.backends.triton_blocks import (
    Sizes,
    Strided,
    Terms,
    allowed_pairs,
    dot,
    load,
    pointers,
    program_indices,
    scores_of,
    store,
    strided,
    tiles,
)

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
MIX_2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _drop(weights, state, dropout, batch, head, queries, keys, sizes):
    """Dropout by `SampleRandom.uniform(h, n, m)`: bits of SplitMix64 (see `vit/randomness.py`)."""
    if state is not None:
        counter = (head * sizes.queries + queries) * sizes.keys + keys
        bits = tl.load(state + batch).to(tl.uint64) + counter.to(tl.uint64) * GOLDEN + GOLDEN
        bits = (bits ^ (bits >> 30)) * MIX_1
        bits = (bits ^ (bits >> 27)) * MIX_2
        bits = bits ^ (bits >> 31)
        uniform = (bits >> 40).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
        weights = tl.where(uniform >= dropout, weights / (1 - dropout), 0.0)
    return weights


@triton.jit
def _forward(
    query, key, value, out, log_sum, factor, mask, bias, state, dropout, sizes,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    block, head, batch = program_indices(tl.cdiv(sizes.queries, QUERIES), sizes.heads)
    group = head // (sizes.heads // sizes.groups)
    rows = block * QUERIES + tl.arange(0, QUERIES)
    widths, value_widths = tl.arange(0, WIDTH)[None, :], tl.arange(0, VALUE_WIDTH)[None, :]
    queries = rows[:, None]
    q = load(query, batch, head, queries, widths, sizes.queries, sizes.width)
    highest = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    average = tl.zeros((QUERIES, VALUE_WIDTH), tl.float32)
    for start in range(0, sizes.keys, KEYS):
        columns = start + tl.arange(0, KEYS)
        keys = columns[None, :]
        allowed = allowed_pairs(mask, batch, head, queries, keys, sizes)
        if mask.start is None or tl.max(allowed.to(tl.int32)) > 0:
            k = load(key, batch, group, columns[:, None], widths, sizes.keys, sizes.width)
            v = load(value, batch, group, columns[:, None], value_widths, sizes.keys, sizes.value_width)
            products = dot(q, tl.trans(k))
            scores = scores_of(products, allowed, factor, bias, batch, head, queries, keys, sizes)
            above = tl.maximum(highest, tl.max(scores, axis=1))
            # a query that was allowed nothing yet has no highest score: anything finite keeps NaN away
            level = tl.where(above == float("-inf"), 0.0, above)
            weights = tl.exp2(scores - level[:, None])
            shrink = tl.exp2(highest - level)
            total = total * shrink + tl.sum(weights, axis=1)
            weights = _drop(weights, state, dropout, batch, head, queries, keys, sizes)
            average = average * shrink[:, None] + dot(weights.to(v.dtype), v)
            highest = above
    dead = total == 0.0
    average = average / tl.where(dead, 1.0, total)[:, None]
    # for a dead row the backward pass computes exp2(score - inf): weights of zero
    log_sum_of_row = tl.where(dead, float("inf"), highest + tl.log2(tl.where(dead, 1.0, total)))
    store(out, batch, head, queries, value_widths, sizes.queries, sizes.value_width, average)
    tl.store(log_sum + (batch * sizes.heads + head) * sizes.queries + rows, log_sum_of_row, mask=rows < sizes.queries)


@triton.jit
def _backward_query(
    query, key, value, out, out_gradient, log_sum, delta, query_gradient, bias_gradient,
    factor, mask, bias, state, dropout, sizes,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries and of their bias; and `delta`, which `_backward_key` needs."""
    block, head, batch = program_indices(tl.cdiv(sizes.queries, QUERIES), sizes.heads)
    group = head // (sizes.heads // sizes.groups)
    rows = block * QUERIES + tl.arange(0, QUERIES)
    widths, value_widths = tl.arange(0, WIDTH)[None, :], tl.arange(0, VALUE_WIDTH)[None, :]
    queries = rows[:, None]
    of_row = (batch * sizes.heads + head) * sizes.queries + rows
    q = load(query, batch, head, queries, widths, sizes.queries, sizes.width)
    o = load(out, batch, head, queries, value_widths, sizes.queries, sizes.value_width)
    do = load(out_gradient, batch, head, queries, value_widths, sizes.queries, sizes.value_width)
    sums = tl.load(log_sum + of_row, mask=rows < sizes.queries, other=float("inf"))[:, None]
    deltas = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    tl.store(delta + of_row, deltas, mask=rows < sizes.queries)
    dq = tl.zeros((QUERIES, WIDTH), tl.float32)
    for start in range(0, sizes.keys, KEYS):
        columns = start + tl.arange(0, KEYS)
        keys = columns[None, :]
        allowed = allowed_pairs(mask, batch, head, queries, keys, sizes)
        if mask.start is None or tl.max(allowed.to(tl.int32)) > 0:
            k = load(key, batch, group, columns[:, None], widths, sizes.keys, sizes.width)
            v = load(value, batch, group, columns[:, None], value_widths, sizes.keys, sizes.value_width)
            products = dot(q, tl.trans(k))
            weights = tl.exp2(scores_of(products, allowed, factor, bias, batch, head, queries, keys, sizes) - sums)
            dw = dot(do, tl.trans(v))
            ds = weights * (_drop(dw, state, dropout, batch, head, queries, keys, sizes) - deltas[:, None])
            dq += dot(ds.to(k.dtype), k)
            if bias_gradient.start is not None:
                tl.atomic_add(pointers(bias_gradient, batch, head, queries, keys), ds, mask=allowed, sem="relaxed")
    store(query_gradient, batch, head, queries, widths, sizes.queries, sizes.width, dq * factor)


@triton.jit
def _backward_key(
    query, key, value, out_gradient, log_sum, delta, key_gradient, value_gradient,
    factor, mask, bias, state, dropout, sizes,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and of their values, over all heads of the group; the map is transposed."""
    block, group, batch = program_indices(tl.cdiv(sizes.keys, KEYS), sizes.groups)
    columns = block * KEYS + tl.arange(0, KEYS)
    widths, value_widths = tl.arange(0, WIDTH)[None, :], tl.arange(0, VALUE_WIDTH)[None, :]
    keys = columns[:, None]
    k = load(key, batch, group, keys, widths, sizes.keys, sizes.width)
    v = load(value, batch, group, keys, value_widths, sizes.keys, sizes.value_width)
    dk = tl.zeros((KEYS, WIDTH), tl.float32)
    dv = tl.zeros((KEYS, VALUE_WIDTH), tl.float32)
    repeats = sizes.heads // sizes.groups
    for head in range(group * repeats, (group + 1) * repeats):
        for start in range(0, sizes.queries, QUERIES):
            rows = start + tl.arange(0, QUERIES)
            queries = rows[None, :]
            allowed = allowed_pairs(mask, batch, head, queries, keys, sizes)
            if mask.start is None or tl.max(allowed.to(tl.int32)) > 0:
                of_row = (batch * sizes.heads + head) * sizes.queries + rows
                sums = tl.load(log_sum + of_row, mask=rows < sizes.queries, other=float("inf"))
                deltas = tl.load(delta + of_row, mask=rows < sizes.queries, other=0.0)
                q = load(query, batch, head, rows[:, None], widths, sizes.queries, sizes.width)
                do = load(out_gradient, batch, head, rows[:, None], value_widths, sizes.queries, sizes.value_width)
                products = dot(k, tl.trans(q))
                scores = scores_of(products, allowed, factor, bias, batch, head, queries, keys, sizes)
                weights = tl.exp2(scores - sums[None, :])
                dropped = _drop(weights, state, dropout, batch, head, queries, keys, sizes)
                dv += dot(dropped.to(do.dtype), do)
                dw = dot(v, tl.trans(do))
                ds = weights * (_drop(dw, state, dropout, batch, head, queries, keys, sizes) - deltas[None, :])
                dk += dot(ds.to(q.dtype), q)
    store(key_gradient, batch, group, keys, widths, sizes.keys, sizes.width, dk * factor)
    store(value_gradient, batch, group, keys, value_widths, sizes.keys, sizes.value_width, dv)


def forward(query: Tensor, key: Tensor, value: Tensor, terms: Terms, out: Tensor, log_sum: Tensor) -> None:
    """Fill `out`, b h n v, and `log_sum`, b h n of float32: the base-2 logarithm of a row's sum of exponentials."""
    sizes = _sizes(query, key, value)
    blocks = _blocks(sizes, query.element_size(), backward=False)
    args = (*map(strided, (query, key, value, out)), log_sum, *terms, sizes)
    _forward[_grid(query, sizes.queries, blocks["QUERIES"])](*args, **blocks)


def backward(
    query: Tensor, key: Tensor, value: Tensor, terms: Terms, out: Tensor, log_sum: Tensor, out_gradient: Tensor,
    gradients: list[Tensor], bias_gradient: Strided,
) -> None:  # fmt: skip
    """Fill the gradients of query, key and value; add to that of the bias, float32 and initially zero."""
    sizes = _sizes(query, key, value)
    blocks = _blocks(sizes, query.element_size(), backward=True)
    q, k, v, o, do, dq, dk, dv = map(strided, (query, key, value, out, out_gradient, *gradients))
    delta = torch.empty_like(log_sum)
    grid = _grid(query, sizes.queries, blocks["QUERIES"])
    _backward_query[grid](q, k, v, o, do, log_sum, delta, dq, bias_gradient, *terms, sizes, **blocks)
    grid = _grid(key, sizes.keys, blocks["KEYS"])
    _backward_key[grid](q, k, v, do, log_sum, delta, dk, dv, *terms, sizes, **blocks)


def _sizes(query: Tensor, key: Tensor, value: Tensor) -> Sizes:
    return Sizes(query.shape[1], key.shape[1], query.shape[2], key.shape[2], query.shape[3], value.shape[3])


def _blocks(sizes: Sizes, itemsize: int, backward: bool) -> dict[str, int]:
    """Compile-time constants. Blocks are not much longer than the sequences, and at least a matrix unit's 16."""
    width, value_width, most_queries, most_keys = (
        max(16, triton.next_power_of_2(size)) for size in (sizes.width, sizes.value_width, sizes.queries, sizes.keys)
    )
    queries, keys, warps, stages = tiles(max(width, value_width), itemsize, backward)
    return {
        "QUERIES": min(queries, most_queries),
        "KEYS": min(keys, most_keys),
        "WIDTH": width,
        "VALUE_WIDTH": value_width,
        "num_warps": warps,
        "num_stages": stages,
        "enable_fp_fusion": True,
    }


def _grid(tensor: Tensor, rows: int, block: int) -> tuple[int]:
    return (tensor.shape[0] * tensor.shape[1] * triton.cdiv(rows, block),)
