"""The attention of torch itself, which torchvision and open_clip use."""

from __future__ import annotations

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vit.analysis.attention_calls.call import Call, Heads, Rows, mask_and_bias, merge
from vit.analysis.unsupported import Unsupported


def read_torch(call: Call) -> Heads | None:
    module = call.module
    query_tokens, key_tokens = call.argument("query"), call.argument("key")
    if query_tokens is not key_tokens or query_tokens is not call.argument("value"):
        return None
    if not module._qkv_same_embed_dim or module.bias_k is not None or module.add_zero_attn:
        raise Unsupported("capture: nn.MultiheadAttention with widths, keys or zeros of its own is not supported")
    tokens = query_tokens if module.batch_first else query_tokens.transpose(0, 1)  # b n c
    whole = F.linear(tokens, module.in_proj_weight, module.in_proj_bias)
    query, key, value = rearrange(whole, "b n (k h d) -> k b h n d", k=3, h=module.num_heads)
    given = call.argument("attn_mask")
    if given is not None and given.dim() == 3:
        given = rearrange(given, "(b h) n m -> b h n m", h=module.num_heads)
    mask, bias = mask_and_bias(given, allowed=False)
    padding = call.argument("key_padding_mask")
    if padding is not None:
        of_keys, _ = mask_and_bias(padding, allowed=False)
        assert of_keys is not None
        mask = of_keys[:, None, None] if mask is None else mask & of_keys[:, None, None]

    def finish(attended: Tensor, _: Rows) -> Tensor:
        return module.out_proj(merge(attended))

    return Heads(query, key, value, mask, bias, module.head_dim**-0.5, finish, tokens, module.batch_first)
