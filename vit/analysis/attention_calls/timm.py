"""The attention modules of timm."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from vit.analysis.attention_calls.call import Call, Heads, Reader, Rows, mask_and_bias, merge, split
from vit.analysis.unsupported import Unsupported


def _plain(call: Call) -> Heads:
    module, tokens = call.module, call.args[0]
    query, key, value = rearrange(call.project("qkv", tokens), "b n (k h d) -> k b h n d", k=3, h=module.num_heads)
    mask, bias = mask_and_bias(call.argument("attn_mask"), allowed=True)
    finish = partial(_finish, module, tokens)
    return Heads(module.q_norm(query), module.k_norm(key), value, mask, bias, module.scale, finish, tokens)


def _rotary(call: Call) -> Heads:
    """`EvaAttention` and `AttentionRope`: one projection or three, perhaps fewer key heads, prefix not rotated."""
    module, tokens = call.module, call.args[0]
    if module.qkv is None:
        groups = getattr(module, "num_kv_heads", module.num_heads)
        query = split(call.project("q_proj", tokens), module.num_heads)
        key, value = (split(call.project(name, tokens), groups) for name in ("k_proj", "v_proj"))
    else:
        whole = _with_apart_bias(call, tokens)
        query, key, value = rearrange(whole, "b n (k h d) -> k b h n d", k=3, h=module.num_heads)
    query, key = module.q_norm(query), module.k_norm(key)
    rotation = call.argument("rope")
    if rotation is not None:
        query, key = (_rotated(module, vectors, rotation).type_as(value) for vectors in (query, key))
    mask, bias = mask_and_bias(call.argument("attn_mask"), allowed=True)
    return Heads(query, key, value, mask, bias, module.scale, partial(_finish, module, tokens), tokens)


def _rotated(module: Any, vectors: Tensor, rotation: Tensor) -> Tensor:
    from timm.layers import apply_rot_embed_cat

    prefix, patches = vectors[:, :, : module.num_prefix_tokens], vectors[:, :, module.num_prefix_tokens :]
    rotated = apply_rot_embed_cat(patches, rotation, half=getattr(module, "rotate_half", False))
    return torch.cat((prefix, rotated), dim=2)  # b h n d


def _with_apart_bias(call: Call, tokens: Tensor) -> Tensor:
    """EVA and BEiT keep their biases apart (keys have none) and add them in place or inside: they are added again."""
    module = call.module
    if getattr(module, "q_bias", None) is None:
        return call.project("qkv", tokens)
    return F.linear(tokens, module.qkv.weight, torch.cat((module.q_bias, module.k_bias, module.v_bias)))


def _beit(call: Call) -> Heads:
    """BEiT's: a table of its own for relative biases, and perhaps the bias of all blocks."""
    module, tokens = call.module, call.args[0]
    whole = _with_apart_bias(call, tokens)
    query, key, value = rearrange(whole, "b n (k h d) -> k b h n d", k=3, h=module.num_heads)
    own = None if module.relative_position_bias_table is None else module._get_rel_pos_bias()
    given = [bias for bias in (own, call.argument("shared_rel_pos_bias")) if bias is not None]
    bias = sum(given) if given else None
    return Heads(query, key, value, None, bias, module.scale, partial(_finish, module, tokens), tokens)


def _relative(call: Call) -> Heads:
    """`vit_relpos_*`: a bias of its own, or the one of all blocks."""
    heads = _plain(call)
    own = call.module.rel_pos
    return heads._replace(bias=call.argument("shared_rel_pos") if own is None else own.get_bias())


def _map(call: Call) -> Heads:
    """SAM's: the tokens of the image or of a window as a map `b gh gw c`, with a bias that the queries decide on."""
    module, tokens = call.module, call.args[0]
    rows, columns = tokens.shape[1:3]
    whole = rearrange(call.project("qkv", tokens), "b ... c -> b (...) c")
    query, key, value = rearrange(whole, "b n (k h d) -> k b h n d", k=3, h=module.num_heads)
    query, key, bias = module.q_norm(query), module.k_norm(key), None
    if module.use_rel_pos:
        bias = _bias_by_query(module, query, (rows, columns))
    elif module.rope is not None:
        from timm.layers import apply_rot_embed_cat

        query, key = (apply_rot_embed_cat(each, module.rope.get_embed()).type_as(value) for each in (query, key))
    flat = rearrange(tokens, "b gh gw c -> b (gh gw) c")
    finish = partial(_finish, module, flat)
    return Heads(query, key, value, None, bias, module.scale, finish, flat, window=(rows, columns))


def _bias_by_query(module: Any, query: Tensor, window: tuple[int, int]) -> Tensor:
    from timm.models.vision_transformer_sam import get_decomposed_rel_pos_bias

    flat = rearrange(query, "b h n d -> (b h) n d")
    bias = get_decomposed_rel_pos_bias(flat, module.rel_pos_h, module.rel_pos_w, window, window)
    return rearrange(bias, "(b h) n m -> b h n m", h=module.num_heads)


def _parallel(call: Call) -> Heads:
    """A block that computes attention and feed-forward at once: its output is the whole block's, with the skip."""
    module, tokens = call.module, call.args[0]
    hidden, query, key, value = call.project("in_proj", module.in_norm(tokens)).split(module.in_split, dim=-1)
    query, key, value = (split(vectors, module.num_heads) for vectors in (query, key, value))
    mask, bias = mask_and_bias(call.argument("attn_mask"), allowed=True)
    hidden = module.mlp_act(hidden if module.mlp_bias is None else hidden + module.mlp_bias)

    def finish(attended: Tensor, rows: Rows) -> Tensor:
        merged, beside = merge(attended), hidden[:, rows]
        if module.out_proj is None:
            added = module.attn_out_proj(merged) + module.mlp_out_proj(beside)
        else:
            merged = merged.expand(-1, beside.shape[1], -1)  # the proof may give one row for all
            added = module.out_proj(torch.cat((merged, beside), dim=-1))
        return tokens[:, rows] + module.ls(added)

    return Heads(module.q_norm(query), module.k_norm(key), value, mask, bias, module.scale, finish, tokens)


def _differential(_: Call) -> Heads:
    rule = "its map is the difference of two, whose weights may be negative and do not sum to 1"
    raise Unsupported(f"capture: differential attention is not valid: {rule}")


def _finish(module: Any, tokens: Tensor, attended: Tensor, rows: Rows) -> Tensor:
    merged = module.norm(merge(attended)) if isinstance(getattr(module, "norm", None), nn.Module) else merge(attended)
    if getattr(module, "gate", None) is not None:
        merged = merged * module.gate(tokens[:, rows]).sigmoid()
    return module.proj(merged)


READERS: dict[str, Reader] = {
    "timm.layers.attention.Attention": _plain,
    "timm.models.vision_transformer.Attention": _plain,
    "timm.layers.attention.AttentionRope": _rotary,
    "timm.models.eva.EvaAttention": _rotary,
    "timm.models.beit.Attention": _beit,
    "timm.models.vision_transformer_relpos.RelPosAttention": _relative,
    "timm.models.vision_transformer_sam.Attention": _map,
    "timm.models.vision_transformer.ParallelScalingBlock": _parallel,
    "timm.models.vision_transformer.DiffParallelScalingBlock": _differential,
    "timm.layers.diff_attention.DiffAttention": _differential,
}
"""By the class's full name."""
