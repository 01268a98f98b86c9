"""Attention written out: the map of all weights is made, then used.

`reference` is einsum and the score's own definition, the oracle of the tests. `matmul` is two batched matrix
products and, where no gradient is recorded, a softmax in place. Letters: see `attend.py`.
"""

from __future__ import annotations

import torch
from einops import repeat
from torch import Tensor

from vit.attention.backends.request import Request, dead_rows
from vit.linear import product_type


def _drop(weights: Tensor, request: Request) -> Tensor:
    if request.dropout == 0:
        return weights
    if request.rng is None:
        return torch.dropout(weights, request.dropout, train=True)
    keep = request.rng.uniform(*weights.shape[1:]) >= request.dropout  # b h n m
    return weights * keep / (1 - request.dropout)


def reference_weights(query: Tensor, key: Tensor, request: Request) -> Tensor:
    """`softmax(score + bias)` over the keys that the mask allows: b h n m, before dropout."""
    key = repeat(key, "b g m d -> b (g r) m d", r=query.shape[1] // key.shape[1])
    scores = request.score(query, key, request.scale)
    if request.bias is not None:
        scores = scores + request.bias
    if request.mask is None:
        return scores.softmax(dim=-1)
    dead = dead_rows(request.mask)
    scores = scores.masked_fill(~(request.mask | dead), float("-inf"))
    return scores.softmax(dim=-1).masked_fill(dead, 0.0)


def reference(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    weights = _drop(reference_weights(query, key, request), request)
    value = repeat(value, "b g m v -> b (g r) m v", r=query.shape[1] // value.shape[1])
    return torch.einsum("b h n m, b h m v -> b h n v", weights.to(value.dtype), value)


def matmul(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    query, key, factor = request.inner_product("matmul").vectors(query, key, request.scale)
    (b, h, n, d), (_, g, m, v) = query.shape, value.shape
    # Without einops, as in `SelfAttention.heads`; (r n) are the queries that share a head of keys.
    query, key = query.reshape(b * g, h // g * n, d), key.reshape(b * g, m, d).transpose(1, 2)
    scores = _scaled_product(query, key, factor)
    dead = None if request.mask is None else dead_rows(request.mask)
    weights = _drop(_softmax_over_allowed(scores, (b, h, n, m), request, dead), request)
    attended = (weights.to(value.dtype).reshape(b * g, h // g * n, m) @ value.reshape(b * g, m, v)).view(b, h, n, v)
    return attended if dead is None else attended.masked_fill(dead, 0.0)


def _scaled_product(first: Tensor, second: Tensor, factor: float) -> Tensor:
    """`factor * first @ second`, where it may by the product itself, which saves a pass.

    Not in float16, where the gradient of `second` would overflow before it is scaled; not by 0, at which oneDNN writes
    nothing; and not compiled, for the compiler would write out the summand that is not there (torch 2.15).
    """
    if torch.compiler.is_compiling() or factor == 0 or product_type(first) == torch.float16:
        return (first * factor) @ second
    return torch.baddbmm(first.new_zeros(()), first, second, beta=0, alpha=factor)


def _softmax_over_allowed(
    scores: Tensor, shape: tuple[int, int, int, int], request: Request, dead: Tensor | None
) -> Tensor:
    """Softmax of scores that nobody else holds, so bias and mask are written into them: b h n m, as `shape` says. Of
    `dead` rows over all keys.
    """
    if request.bias is not None:
        scores = scores.view(shape)
        scores = scores.add_(request.bias) if _fits(request.bias, scores) else scores + request.bias
    if request.mask is not None and dead is not None:
        _hide(scores, shape, request.mask | dead)
    scores = scores.view(shape)
    return scores.softmax(dim=-1) if scores.requires_grad else torch.softmax(scores, dim=-1, out=scores)


def _hide(scores: Tensor, shape: tuple[int, int, int, int], allowed: Tensor) -> None:
    """`-inf` into scores that are not allowed, by a bound on each: filling under a mask takes four times as long. What
    is not a number stays so.

    Unseen by autograd, whose gradient of a hidden score is 0 without it, for its weight is. The view is of this moment:
    one that autograd knew (behind a bias there is one) would be made anew, by a copy of its gradient.
    """
    bound = torch.where(allowed, torch.inf, -torch.inf).to(scores.dtype)
    with torch.no_grad():
        scores.view(shape).clamp_max_(bound)


def _fits(bias: Tensor, scores: Tensor) -> bool:
    """Whether the sum may be written into `scores`: same type, and no gradient that `scores` does not
    have.
    """
    return bias.dtype == scores.dtype and (scores.requires_grad or not bias.requires_grad)
