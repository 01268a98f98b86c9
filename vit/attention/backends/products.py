"""Attention by way of the whole map of weights.

`reference` uses einsum and the score's definition; the tests compare with it. `matmul` is two batched matrix products
and, where no gradient is recorded, a softmax in place. Notation: see `core.py`.
"""

from __future__ import annotations

import torch
from einops import repeat
from torch import Tensor

from vit.attention.backends.options import AttentionOptions, dead_rows
from vit.linear import matmul_dtype


def _drop(weights: Tensor, options: AttentionOptions) -> Tensor:
    if options.dropout == 0:
        return weights
    if options.rng is None:
        return torch.dropout(weights, options.dropout, train=True)
    keep = options.rng.uniform(*weights.shape[1:]) >= options.dropout  # b h n m
    return weights * keep / (1 - options.dropout)


def reference_weights(query: Tensor, key: Tensor, options: AttentionOptions) -> Tensor:
    """`softmax(score + bias)` over the keys that the mask allows: b h n m, before dropout."""
    key = repeat(key, "b g m d -> b (g r) m d", r=query.shape[1] // key.shape[1])
    scores = options.score(query, key, options.scale)
    if options.bias is not None:
        scores = scores + options.bias
    if options.mask is None:
        return scores.softmax(dim=-1)
    dead = dead_rows(options.mask)
    scores = scores.masked_fill(~(options.mask | dead), float("-inf"))
    return scores.softmax(dim=-1).masked_fill(dead, 0.0)


def reference(query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
    weights = _drop(reference_weights(query, key, options), options)
    value = repeat(value, "b g m v -> b (g r) m v", r=query.shape[1] // value.shape[1])
    return torch.einsum("b h n m, b h m v -> b h n v", weights.to(value.dtype), value)


def matmul(query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
    query, key, factor = options.inner_product("matmul").vectors(query, key, options.scale)
    (b, h, n, d), (_, g, m, v) = query.shape, value.shape
    # No einops, as in `SelfAttention.heads`; h // g * n queries share a key head.
    query, key = query.reshape(b * g, h // g * n, d), key.reshape(b * g, m, d).transpose(1, 2)
    scores = _scaled_product(query, key, factor)
    if options.bias is not None:
        bias, scores = options.bias, scores.view(b, h, n, m)
        # in place where the type is the same and the scores record a gradient if the bias needs one
        in_place = bias.dtype == scores.dtype and (scores.requires_grad or not bias.requires_grad)
        scores = scores.add_(bias) if in_place else scores + bias
    dead = None if options.mask is None else dead_rows(options.mask)
    if options.mask is not None and dead is not None:
        _mask_in_place(scores, (b, h, n, m), options.mask | dead)
    scores = scores.view(b, h, n, m)
    # nothing else holds the scores, so the softmax may overwrite them
    weights = scores.softmax(dim=-1) if scores.requires_grad else torch.softmax(scores, dim=-1, out=scores)
    weights = _drop(weights, options)
    attended = (weights.to(value.dtype).reshape(b * g, h // g * n, m) @ value.reshape(b * g, m, v)).view(b, h, n, v)
    return attended if dead is None else attended.masked_fill(dead, 0.0)


def _scaled_product(first: Tensor, second: Tensor, factor: float) -> Tensor:
    """`factor * first @ second`, scaled within the product where possible, which saves a pass."""
    # Separately in float16, where the gradient of `second` would overflow before it is scaled; for a factor of 0, at
    # which oneDNN writes nothing; and when compiled, as the compiler materializes the absent summand (torch 2.15).
    if torch.compiler.is_compiling() or factor == 0 or matmul_dtype(first) == torch.float16:
        return (first * factor) @ second
    return torch.baddbmm(first.new_zeros(()), first, second, beta=0, alpha=factor)


def _mask_in_place(scores: Tensor, shape: tuple[int, int, int, int], allowed: Tensor) -> None:
    """Set scores that are not allowed to `-inf`; NaN stays NaN."""
    # An upper bound for each score: `masked_fill_` takes four times as long.
    bound = torch.where(allowed, torch.inf, -torch.inf).to(scores.dtype)
    # Hidden from autograd: a masked score has weight 0, and so gradient 0 without this. The view is made here because
    # autograd would rebuild one that it knew (there is one behind a bias) by a copy of its gradient.
    with torch.no_grad():
        scores.view(shape).clamp_max_(bound)
