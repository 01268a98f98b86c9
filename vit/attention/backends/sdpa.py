"""torch's fused kernel, `F.scaled_dot_product_attention`. Letters: see `attend.py`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from vit.attention.backends.request import Refused, Request, dead_rows


def sdpa(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    if request.dropout > 0 and request.rng is not None:
        raise Refused("sdpa", "the fused kernel draws its own dropout and takes none from rng, use 'matmul'")
    query, key, factor = request.inner_product("sdpa").vectors(query, key, request.scale)
    dead = None if request.mask is None else dead_rows(request.mask)
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
