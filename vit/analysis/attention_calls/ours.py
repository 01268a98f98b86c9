"""The attention of this package."""

from __future__ import annotations

from einops import rearrange
from torch import Tensor

from vit.analysis.attention_calls.call import Call, Heads, Rows, merge
from vit.analysis.unsupported import Unsupported


def read_self_attention(call: Call) -> Heads:
    """`SelfAttention`, which is only ever called with its options by name."""
    module, (tokens,) = call.module, call.args
    if call.kwargs.get("cache") is not None:
        raise Unsupported("capture: a key cache is not valid: capture a whole sequence at once")
    query, key, value = rearrange(call.project("qkv", tokens), "b n (k h d) -> k b h n d", k=3, h=module.num_heads)
    query, key = module.query_norm(query), module.key_norm(key)
    rotate = call.kwargs.get("rotate")
    if rotate is not None:
        query, key = rotate(query), rotate(key)
    mask, bias = call.kwargs.get("mask"), call.kwargs.get("bias")

    def finish(attended: Tensor, _: Rows) -> Tensor:
        return module.output(module.output_norm(merge(attended)))

    return Heads(query, key, value, mask, bias, query.shape[-1] ** -0.5, finish, tokens)
