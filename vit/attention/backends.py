"""Backends: ways to compute the same attention.

`reference` is einsum and the score's own definition, the oracle of the tests. `matmul` is two batched matrix
products and, where no gradient is recorded, a softmax in place. `sdpa` is torch's fused kernel. A backend
that cannot honour a request raises; it never answers another question. Letters: see `attend.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import rearrange, repeat
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from vit.attention.scores import InnerProduct, Score
from vit.randomness import SampleRandom


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything about one attention besides its vectors; `mask` and `bias` have four dimensions."""

    score: Score
    scale: float | None
    mask: Tensor | None
    bias: Tensor | None
    dropout: float = 0.0
    rng: SampleRandom | None = None

    def inner_product(self, backend: str) -> InnerProduct:
        if isinstance(self.score, InnerProduct):
            return self.score
        name = type(self.score).__name__
        raise ValueError(f"backend: {backend!r} is not valid: the score {name} is no inner product, use 'reference'")


def _dead_rows(mask: Tensor) -> Tensor:
    """Queries that may attend to nothing, `b h n 1`. They attend to everything and are then set to zero: no
    NaN.
    """
    return ~mask.any(dim=-1, keepdim=True)


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
    dead = _dead_rows(request.mask)
    scores = scores.masked_fill(~(request.mask | dead), float("-inf"))
    return scores.softmax(dim=-1).masked_fill(dead, 0.0)


def reference(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    weights = _drop(reference_weights(query, key, request), request)
    value = repeat(value, "b g m v -> b (g r) m v", r=query.shape[1] // value.shape[1])
    return torch.einsum("b h n m, b h m v -> b h n v", weights.to(value.dtype), value)


def matmul(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    num_heads, num_groups = query.shape[1], key.shape[1]
    query, key, factor = request.inner_product("matmul").vectors(query, key, request.scale)
    grouped = rearrange(query * factor, "b (g r) n d -> b g (r n) d", g=num_groups)
    scores = rearrange(grouped @ key.transpose(-2, -1), "b g (r n) m -> b (g r) n m", r=num_heads // num_groups)
    weights = _drop(_softmax_over_allowed(scores, request), request)
    grouped = rearrange(weights.to(value.dtype), "b (g r) n m -> b g (r n) m", g=num_groups)
    return rearrange(grouped @ value, "b g (r n) v -> b (g r) n v", r=num_heads // num_groups)


def _softmax_over_allowed(scores: Tensor, request: Request) -> Tensor:
    """Softmax of scores that nobody else holds, so bias and mask are written into them: b h n m."""
    if request.bias is not None:
        scores = scores.add_(request.bias) if _fits(request.bias, scores) else scores + request.bias
    dead = None if request.mask is None else _dead_rows(request.mask)
    if request.mask is not None and dead is not None:
        scores = scores.masked_fill_(~(request.mask | dead), float("-inf"))
    weights = scores.softmax(dim=-1) if scores.requires_grad else torch.softmax(scores, dim=-1, out=scores)
    return weights if dead is None else weights.masked_fill(dead, 0.0)


def _fits(bias: Tensor, scores: Tensor) -> bool:
    """Whether the sum may be written into `scores`: same type, and no gradient that `scores` does not
    have.
    """
    return bias.dtype == scores.dtype and (scores.requires_grad or not bias.requires_grad)


def sdpa(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    if request.dropout > 0 and request.rng is not None:
        rule = "the fused kernel draws its own dropout and takes none from rng, use 'matmul'"
        raise ValueError(f"backend: 'sdpa' is not valid: {rule}")
    query, key, factor = request.inner_product("sdpa").vectors(query, key, request.scale)
    dead = None if request.mask is None else _dead_rows(request.mask)
    attended = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=_additive_mask(request, dead, query.dtype),
        dropout_p=request.dropout,
        scale=factor,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return attended if dead is None else attended.masked_fill(dead, 0.0)


def _additive_mask(request: Request, dead: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Mask and bias as the one tensor that the kernel takes."""
    allowed = None if request.mask is None or dead is None else request.mask | dead
    if request.bias is None:
        return allowed
    bias = request.bias.to(dtype)
    return bias if allowed is None else bias.masked_fill(~allowed, float("-inf"))


BACKENDS = {"reference": reference, "matmul": matmul, "sdpa": sdpa}
