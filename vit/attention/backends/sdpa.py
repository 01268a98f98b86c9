"""torch's fused kernel, `F.scaled_dot_product_attention`. Notation: see `core.py`."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from vit.attention.backends.options import AttentionOptions, Refused, dead_rows


def sdpa(query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
    if options.dropout > 0 and options.rng is not None:
        raise Refused("sdpa", "the fused kernel draws its own dropout and takes none from rng, use 'matmul'")
    query, key, factor = options.inner_product("sdpa").vectors(query, key, options.scale)
    dead = allowed = None
    if options.mask is not None:
        dead = dead_rows(options.mask)
        allowed = options.mask | dead
    bias_and_mask = allowed  # the kernel takes one tensor for both
    if options.bias is not None:
        bias = options.bias.to(query.dtype)
        bias_and_mask = bias if allowed is None else bias.masked_fill(~allowed, float("-inf"))
    attended = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=bias_and_mask,
        dropout_p=options.dropout,
        scale=factor,
        enable_gqa=bool(query.shape[1] != key.shape[1]),  # torch.jit.trace has tensors for sizes
    )
    return attended if dead is None else attended.masked_fill(dead, 0.0)
