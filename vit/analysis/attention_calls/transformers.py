"""The attention modules of transformers, version 4 and 5."""

from __future__ import annotations

from torch import Tensor, nn

from vit.analysis.attention_calls.call import Call, Heads, Reader, Rows, mask_and_bias, merge, split


def _plain(call: Call) -> Heads:
    """transformers 5 (`q_proj` …, the output's projection inside) and 4 (`query` …, it follows outside)."""
    module, tokens = call.module, call.argument("hidden_states")
    names = ("q_proj", "k_proj", "v_proj") if hasattr(module, "q_proj") else ("query", "key", "value")
    heads = getattr(module, "num_heads", None) or module.num_attention_heads
    query, key, value = (split(call.project(name, tokens), heads) for name in names)
    mask, bias = mask_and_bias(call.argument("attention_mask"), allowed=True)
    output = getattr(module, "out_proj", None) or getattr(module, "o_proj", None) or nn.Identity()
    scale = getattr(module, "scale", None) or getattr(module, "scaling", None) or query.shape[-1] ** -0.5

    def finish(attended: Tensor, _: Rows) -> Tensor:
        return output(merge(attended))

    return Heads(query, key, value, mask, bias, scale, finish, tokens)


def _rotary(call: Call) -> Heads:
    """DINOv3's: the last tokens, which are the patches, are rotated."""
    from transformers.models.dinov3_vit.modeling_dinov3_vit import apply_rotary_pos_emb

    heads = _plain(call)
    query, key = apply_rotary_pos_emb(heads.query, heads.key, *call.argument("position_embeddings"))
    return heads._replace(query=query, key=key)


def _relative(call: Call) -> Heads:
    """BEiT's and Data2Vec's: beside the mask a bias by relative position, of the layer and of all layers, is added.

    transformers 5 gives both to BEiT's module as its mask.
    """
    module, heads = call.module, _plain(call)
    biases = [heads.bias, call.argument("relative_position_bias")]
    own = getattr(module, "relative_position_bias", None)
    if own is not None:
        window = tuple(side // module.config.patch_size for side in call.argument("resolution"))
        resized = bool(call.argument("interpolate_pos_encoding"))
        biases.append(own(window, resized, dim_size=heads.query.shape[2]))
    given = [bias for bias in biases if bias is not None]
    return heads._replace(bias=sum(given) if given else None)


_CLASSES: dict[str, tuple[Reader, tuple[str, ...]]] = {
    "vit": (_plain, ("ViTAttention", "ViTSelfAttention")),
    "deit": (_plain, ("DeiTAttention", "DeiTSelfAttention")),
    "dinov2": (_plain, ("Dinov2Attention", "Dinov2SelfAttention")),
    "dinov2_with_registers": (_plain, ("Dinov2WithRegistersAttention", "Dinov2WithRegistersSelfAttention")),
    "dinov3_vit": (_rotary, ("DINOv3ViTAttention",)),
    "clip": (_plain, ("CLIPAttention",)),
    "siglip": (_plain, ("SiglipAttention",)),
    "siglip2": (_plain, ("Siglip2Attention",)),
    "aimv2": (_plain, ("Aimv2Attention",)),
    "vit_mae": (_plain, ("ViTMAEAttention", "ViTMAESelfAttention")),
    "vit_msn": (_plain, ("ViTMSNAttention", "ViTMSNSelfAttention")),
    "ijepa": (_plain, ("IJepaAttention", "IJepaSelfAttention")),
    "beit": (_relative, ("BeitAttention", "BeitSelfAttention")),
    "data2vec": (_relative, ("Data2VecVisionSelfAttention",)),
}
"""Classes by folder, those of transformers 5 first. In 4 each `…SelfAttention` is inside a `…Attention` without
projections."""

READERS: dict[str, Reader] = {
    f"transformers.models.{folder}.modeling_{folder}{'_vision' * (folder == 'data2vec')}.{name}": reader
    for folder, (reader, names) in _CLASSES.items()
    for name in names
}
"""By the class's full name."""
