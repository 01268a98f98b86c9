"""Queries, keys and values of one call of an attention module, as they meet, for each library's class.

A reader knows one class: which of its layers gave the vectors, what was done to them (normalised, rotated), how they
were masked and scaled, and what follows the weighted averages. Classes are known by their names, so that no library is
imported for it. `proof` tests that a reader is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from vit.analysis.unsupported import Unsupported

PROJECTIONS = ("qkv", "in_proj", "q_proj", "k_proj", "v_proj", "query", "key", "value")
"""Layers inside attention modules whose outputs are kept during the pass, so that nothing is projected twice."""

Rows = Tensor | slice
Finish = Callable[[Tensor, Rows], Tensor]
"""The module's computation after attending, `b h r v -> b r c`, for some of the queries."""


class Heads(NamedTuple):
    """`b h n d, b g m d, b g m v`, just before they meet."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    bias: Tensor | None
    scale: float | None
    """None: the score's own."""
    finish: Finish
    input: Tensor
    """b n c"""
    batch_first: bool = True
    """Whether the module's output is b n c, as `finish` has it, or n b c."""
    window: tuple[int, int] | None = None
    """Rows and columns of the map that the module was given for its tokens; None: it was given tokens."""


@dataclass(frozen=True, eq=False)
class Call:
    """A module, the arguments of the call and the outputs of its projections."""

    module: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    projected: Mapping[str, Tensor]

    def argument(self, name: str) -> Any:
        """The argument that the module calls `name`, passed by place or by name; None where it was not given."""
        given = signature(self.module.forward).bind(*self.args, **self.kwargs).arguments
        return given.get(name, self.kwargs.get(name))

    def project(self, name: str, tokens: Tensor) -> Tensor:
        """A projection's output from the pass or, where the module went around its layer, made now."""
        kept = self.projected.get(name)
        return getattr(self.module, name)(tokens) if kept is None else kept


Reader = Callable[[Call], Heads | None]
"""None: the call was no self-attention."""


# ------------------------------------------------------------------ masks


def mask_and_bias(given: Tensor | None, *, allowed: bool) -> tuple[Tensor | None, Tensor | None]:
    """Another library's mask as ours: boolean (True means `allowed`), or real and added to the scores, lowest: not."""
    if given is None:
        return None, None
    if given.dtype == torch.bool:
        return (given if allowed else ~given), None
    mask = given > torch.finfo(given.dtype).min / 2
    return mask, given.masked_fill(~mask, 0.0)


def _split(tokens: Tensor, num_heads: int) -> Tensor:
    return rearrange(tokens, "b n (h d) -> b h n d", h=num_heads)


def _merge(attended: Tensor) -> Tensor:
    return rearrange(attended, "b h r v -> b r (h v)")


# ------------------------------------------------------------------ this package


def _of_ours(call: Call) -> Heads:
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
        return module.output(_merge(attended))

    return Heads(query, key, value, mask, bias, query.shape[-1] ** -0.5, finish, tokens)


# ------------------------------------------------------------------ timm


def _timm_finish(module: Any, tokens: Tensor, attended: Tensor, rows: Rows) -> Tensor:
    merged = module.norm(_merge(attended)) if isinstance(getattr(module, "norm", None), nn.Module) else _merge(attended)
    if getattr(module, "gate", None) is not None:
        merged = merged * module.gate(tokens[:, rows]).sigmoid()
    return module.proj(merged)


def _of_timm(call: Call) -> Heads:
    module, tokens = call.module, call.args[0]
    query, key, value = rearrange(call.project("qkv", tokens), "b n (k h d) -> k b h n d", k=3, h=module.num_heads)
    mask, bias = mask_and_bias(call.argument("attn_mask"), allowed=True)
    finish = partial(_timm_finish, module, tokens)
    return Heads(module.q_norm(query), module.k_norm(key), value, mask, bias, module.scale, finish, tokens)


def _of_timm_rotary(call: Call) -> Heads:
    """`EvaAttention` and `AttentionRope`: one projection or three, perhaps fewer key heads, prefix not rotated."""
    module, tokens = call.module, call.args[0]
    if module.qkv is None:
        groups = getattr(module, "num_kv_heads", module.num_heads)
        query = _split(call.project("q_proj", tokens), module.num_heads)
        key, value = (_split(call.project(name, tokens), groups) for name in ("k_proj", "v_proj"))
    else:
        whole = _with_apart_bias(call, tokens)
        query, key, value = rearrange(whole, "b n (k h d) -> k b h n d", k=3, h=module.num_heads)
    query, key = module.q_norm(query), module.k_norm(key)
    rotation = call.argument("rope")
    if rotation is not None:
        query, key = (_rotated(module, vectors, rotation).type_as(value) for vectors in (query, key))
    mask, bias = mask_and_bias(call.argument("attn_mask"), allowed=True)
    return Heads(query, key, value, mask, bias, module.scale, partial(_timm_finish, module, tokens), tokens)


def _with_apart_bias(call: Call, tokens: Tensor) -> Tensor:
    """EVA and BEiT keep their biases apart (keys have none) and add them in place or inside: they are added again."""
    module = call.module
    if getattr(module, "q_bias", None) is None:
        return call.project("qkv", tokens)
    return F.linear(tokens, module.qkv.weight, torch.cat((module.q_bias, module.k_bias, module.v_bias)))


def _of_timm_beit(call: Call) -> Heads:
    """BEiT's: a table of its own for relative biases, and perhaps the bias of all blocks."""
    module, tokens = call.module, call.args[0]
    whole = _with_apart_bias(call, tokens)
    query, key, value = rearrange(whole, "b n (k h d) -> k b h n d", k=3, h=module.num_heads)
    own = None if module.relative_position_bias_table is None else module._get_rel_pos_bias()
    given = [bias for bias in (own, call.argument("shared_rel_pos_bias")) if bias is not None]
    bias = sum(given) if given else None
    return Heads(query, key, value, None, bias, module.scale, partial(_timm_finish, module, tokens), tokens)


def _of_timm_relative(call: Call) -> Heads:
    """`vit_relpos_*`: a bias of its own, or the one of all blocks."""
    heads = _of_timm(call)
    own = call.module.rel_pos
    return heads._replace(bias=call.argument("shared_rel_pos") if own is None else own.get_bias())


def _of_timm_map(call: Call) -> Heads:
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
    finish = partial(_timm_finish, module, flat)
    return Heads(query, key, value, None, bias, module.scale, finish, flat, window=(rows, columns))


def _bias_by_query(module: Any, query: Tensor, window: tuple[int, int]) -> Tensor:
    from timm.models.vision_transformer_sam import get_decomposed_rel_pos_bias

    flat = rearrange(query, "b h n d -> (b h) n d")
    bias = get_decomposed_rel_pos_bias(flat, module.rel_pos_h, module.rel_pos_w, window, window)
    return rearrange(bias, "(b h) n m -> b h n m", h=module.num_heads)


def _of_timm_parallel(call: Call) -> Heads:
    """A block that computes attention and feed-forward at once: its output is the whole block's, with the skip."""
    module, tokens = call.module, call.args[0]
    hidden, query, key, value = call.project("in_proj", module.in_norm(tokens)).split(module.in_split, dim=-1)
    query, key, value = (_split(vectors, module.num_heads) for vectors in (query, key, value))
    mask, bias = mask_and_bias(call.argument("attn_mask"), allowed=True)
    hidden = module.mlp_act(hidden if module.mlp_bias is None else hidden + module.mlp_bias)

    def finish(attended: Tensor, rows: Rows) -> Tensor:
        merged, beside = _merge(attended), hidden[:, rows]
        if module.out_proj is None:
            added = module.attn_out_proj(merged) + module.mlp_out_proj(beside)
        else:
            merged = merged.expand(-1, beside.shape[1], -1)  # the proof may give one row for all
            added = module.out_proj(torch.cat((merged, beside), dim=-1))
        return tokens[:, rows] + module.ls(added)

    return Heads(module.q_norm(query), module.k_norm(key), value, mask, bias, module.scale, finish, tokens)


def _of_timm_differential(_: Call) -> Heads:
    rule = "its map is the difference of two, whose weights may be negative and do not sum to 1"
    raise Unsupported(f"capture: differential attention is not valid: {rule}")


def _rotated(module: Any, vectors: Tensor, rotation: Tensor) -> Tensor:
    from timm.layers import apply_rot_embed_cat

    prefix, patches = vectors[:, :, : module.num_prefix_tokens], vectors[:, :, module.num_prefix_tokens :]
    rotated = apply_rot_embed_cat(patches, rotation, half=getattr(module, "rotate_half", False))
    return torch.cat((prefix, rotated), dim=2)  # b h n d


# ------------------------------------------------------------------ torch: torchvision, open_clip


def _of_torch(call: Call) -> Heads | None:
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
        return module.out_proj(_merge(attended))

    return Heads(query, key, value, mask, bias, module.head_dim**-0.5, finish, tokens, module.batch_first)


# ------------------------------------------------------------------ Hugging Face


def _of_hf(call: Call) -> Heads:
    """transformers 5 (`q_proj` …, the output's projection inside) and 4 (`query` …, it follows outside)."""
    module, tokens = call.module, call.argument("hidden_states")
    names = ("q_proj", "k_proj", "v_proj") if hasattr(module, "q_proj") else ("query", "key", "value")
    heads = getattr(module, "num_heads", None) or module.num_attention_heads
    query, key, value = (_split(call.project(name, tokens), heads) for name in names)
    mask, bias = mask_and_bias(call.argument("attention_mask"), allowed=True)
    output = getattr(module, "out_proj", None) or getattr(module, "o_proj", None) or nn.Identity()
    scale = getattr(module, "scale", None) or getattr(module, "scaling", None) or query.shape[-1] ** -0.5

    def finish(attended: Tensor, _: Rows) -> Tensor:
        return output(_merge(attended))

    return Heads(query, key, value, mask, bias, scale, finish, tokens)


def _of_hf_rotary(call: Call) -> Heads:
    """DINOv3's: the last tokens, which are the patches, are rotated."""
    from transformers.models.dinov3_vit.modeling_dinov3_vit import apply_rotary_pos_emb

    heads = _of_hf(call)
    query, key = apply_rotary_pos_emb(heads.query, heads.key, *call.argument("position_embeddings"))
    return heads._replace(query=query, key=key)


def _of_hf_relative(call: Call) -> Heads:
    """BEiT's and Data2Vec's: beside the mask a bias by relative position, of the layer and of all layers, is added.

    transformers 5 gives both to BEiT's module as its mask.
    """
    module, heads = call.module, _of_hf(call)
    biases = [heads.bias, call.argument("relative_position_bias")]
    own = getattr(module, "relative_position_bias", None)
    if own is not None:
        window = tuple(side // module.config.patch_size for side in call.argument("resolution"))
        resized = bool(call.argument("interpolate_pos_encoding"))
        biases.append(own(window, resized, dim_size=heads.query.shape[2]))
    given = [bias for bias in biases if bias is not None]
    return heads._replace(bias=sum(given) if given else None)


_IN_TRANSFORMERS: dict[str, tuple[Reader, tuple[str, ...]]] = {
    "vit": (_of_hf, ("ViTAttention", "ViTSelfAttention")),
    "deit": (_of_hf, ("DeiTAttention", "DeiTSelfAttention")),
    "dinov2": (_of_hf, ("Dinov2Attention", "Dinov2SelfAttention")),
    "dinov2_with_registers": (_of_hf, ("Dinov2WithRegistersAttention", "Dinov2WithRegistersSelfAttention")),
    "dinov3_vit": (_of_hf_rotary, ("DINOv3ViTAttention",)),
    "clip": (_of_hf, ("CLIPAttention",)),
    "siglip": (_of_hf, ("SiglipAttention",)),
    "siglip2": (_of_hf, ("Siglip2Attention",)),
    "aimv2": (_of_hf, ("Aimv2Attention",)),
    "vit_mae": (_of_hf, ("ViTMAEAttention", "ViTMAESelfAttention")),
    "vit_msn": (_of_hf, ("ViTMSNAttention", "ViTMSNSelfAttention")),
    "ijepa": (_of_hf, ("IJepaAttention", "IJepaSelfAttention")),
    "beit": (_of_hf_relative, ("BeitAttention", "BeitSelfAttention")),
    "data2vec": (_of_hf_relative, ("Data2VecVisionSelfAttention",)),
}
"""Classes by folder, those of transformers 5 first. In 4 each `…SelfAttention` is inside a `…Attention` without
projections."""

READERS: dict[str, Reader] = {
    "vit.attention.multihead.SelfAttention": _of_ours,
    "timm.layers.attention.Attention": _of_timm,
    "timm.models.vision_transformer.Attention": _of_timm,
    "timm.layers.attention.AttentionRope": _of_timm_rotary,
    "timm.models.eva.EvaAttention": _of_timm_rotary,
    "timm.models.beit.Attention": _of_timm_beit,
    "timm.models.vision_transformer_relpos.RelPosAttention": _of_timm_relative,
    "timm.models.vision_transformer_sam.Attention": _of_timm_map,
    "timm.models.vision_transformer.ParallelScalingBlock": _of_timm_parallel,
    "timm.models.vision_transformer.DiffParallelScalingBlock": _of_timm_differential,
    "timm.layers.diff_attention.DiffAttention": _of_timm_differential,
    "torch.nn.modules.activation.MultiheadAttention": _of_torch,
    **{
        f"transformers.models.{folder}.modeling_{folder}{'_vision' * (folder == 'data2vec')}.{name}": reader
        for folder, (reader, names) in _IN_TRANSFORMERS.items()
        for name in names
    },
}
"""By the class's full name."""


def attention_reader(module: nn.Module) -> Reader | None:
    """The reader of a module's class, or of the nearest class that it inherits from."""
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(module).__mro__)
    name, reader = next(((name, READERS[name]) for name in names if name in READERS), ("", None))
    if name.startswith("transformers.") and not (hasattr(module, "q_proj") or hasattr(module, "query")):
        return None
    return reader


def known_attention() -> str:
    """The libraries whose classes are in `READERS`, with the modules; of transformers, the models."""
    modules: dict[str, set[str]] = {}
    for name in READERS:
        library, *rest = name.split(".")
        modules.setdefault(library, set()).add(rest[1] if library == "transformers" else rest[-2])
    return ", ".join(f"{library} ({', '.join(sorted(names))})" for library, names in sorted(modules.items()))
