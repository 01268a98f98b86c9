"""timm's EVA blocks as architectures of ours, and back: EVA, EVA-02, DINOv3, RoPE-ViT, the Perception Encoder.

Fang et al. 2022 and 2023; Siméoni et al. 2025; Heo et al. 2024; Bolya et al. 2025.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from vit.config import ViTConfig
from vit.config.vit import ROTARY_POSITIONS
from vit.layers.feedforward import swiglu_width
from vit.libraries import NoCounterpart
from vit.libraries.timm_ratio import exact_ratio

ROPES = {"RotaryEmbeddingCat": "patch", "RotaryEmbeddingMixed": "patch", "RotaryEmbeddingDinoV3": "centred"}
"""Class of timm's rotary embedding → `model.rope_coordinates`."""


def unsupported_part(model: Any) -> str | None:
    """The first part of an `Eva` that our Vision Transformer does not compute."""
    block, blocks = model.blocks[0], model.blocks
    if type(block).__name__ == "EvaBlockPostNorm":
        return "norms after the branches"
    parts = {
        "grouped queries": any(getattr(each.attn, "num_kv_groups", 1) != 1 for each in blocks),
        f"rotary positions of the kind {type(model.rope).__name__}": model.rope is not None
        and type(model.rope).__name__ not in ROPES,
        "LayerScale on one branch alone": (block.gamma_1 is None) != (block.gamma_2 is None),
        "a norm in a feed-forward layer without a gate": type(block.mlp).__name__ == "Mlp"
        and not isinstance(block.mlp.norm, nn.Identity),
    }
    return next((what for what, present in parts.items() if present), None)


def own_options(model: Any) -> dict[str, Any]:
    """Fields of `ViTConfig` that an `Eva` sets beside those of any of timm's Vision Transformers."""
    block, rope = model.blocks[0], model.rope
    options: dict[str, Any] = {
        "qkv_bias": any(name.startswith("blocks.0.attn.q") and name.endswith("bias") for name in model.state_dict()),
        "attention_norm": not isinstance(block.attn.norm, nn.Identity),
        "layer_scale": None if block.gamma_1 is None else 1e-5,
    }
    if rope is None:
        return options
    options |= {
        "positions": "rope" if model.pos_embed is None else "learned_1d_rope",
        "rope_temperature": float(rope.temperature),
        "rope_columns_first": rope.grid_indexing == "xy",
        "rope_coordinates": ROPES[type(rope).__name__],
        "rope_mixed": type(rope).__name__ == "RotaryEmbeddingMixed",
    }
    if type(rope).__name__ == "RotaryEmbeddingCat":
        reference = rope.ref_feat_shape
        options |= {"rope_grid": reference and tuple(reference), "rope_offset": float(rope.grid_offset)}
    return options


def is_eva(config: ViTConfig) -> bool:
    """Architectures that timm builds of EVA's blocks alone."""
    return config.positions in ROTARY_POSITIONS or config.attention_norm or config.feedforward_norm


def build_eva(config: ViTConfig, *, attention: str = "eva", fused: bool = True, gate_apart: bool = False) -> nn.Module:
    """timm's own `Eva`. `attention`: `eva` (no bias of the keys) or `rope`; `fused`: queries, keys and values in one
    layer; `gate_apart`: SwiGLU's gate in a layer of its own. NoCounterpart where timm has no such architecture.
    """
    from timm.models.eva import Eva

    check_expressible(config)
    hidden = round(config.width * config.mlp_ratio)
    if config.feedforward == "swiglu":
        hidden = swiglu_width(hidden, config.swiglu_multiple)
    pool_hidden = round(config.width * (config.pool_mlp_ratio or 1))
    rotary = config.positions in ROTARY_POSITIONS
    kind = "mixed" if config.rope_mixed else "dinov3" if config.rope_coordinates == "centred" else "cat"
    return Eva(
        img_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        global_pool={"cls": "token", "gap": "avg", "map": "map"}[config.pooling],
        attn_pool_num_heads=config.pool_heads,
        attn_pool_mlp_ratio=None if config.pool_mlp_ratio is None else exact_ratio(pool_hidden, config.width),
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.num_heads,
        qkv_bias=config.qkv_bias,
        qkv_fused=fused,
        mlp_ratio=exact_ratio(hidden, config.width),
        swiglu_mlp=config.feedforward == "swiglu",
        swiglu_align_to=1 if gate_apart and not config.feedforward_norm else 0,
        scale_mlp=config.feedforward_norm,
        scale_attn_inner=config.attention_norm,
        attn_type=attention,
        norm_layer=partial(nn.LayerNorm, eps=config.norm_eps),
        init_values=config.layer_scale,
        class_token=config.class_token,
        num_reg_tokens=config.num_registers,
        no_embed_class=config.num_placed_tokens == 0,
        use_abs_pos_emb=config.positions != "rope",
        use_rot_pos_emb=rotary,
        rope_type=kind,
        rope_grid_offset=config.rope_offset,
        rope_grid_indexing="xy" if config.rope_columns_first else "ij",
        rope_temperature=config.rope_temperature,
        rope_rotate_half=kind == "dinov3",
        use_pre_transformer_norm=config.pre_norm,
        use_post_transformer_norm=config.final_norm == "tokens",
        use_fc_norm=config.final_norm == "pooled",
        ref_feat_shape=config.rope_grid,
    )


def check_expressible(config: ViTConfig) -> None:
    """NoCounterpart, naming the setting, for an architecture that timm does not build of EVA's blocks."""
    reads_prefix = config.pooling == "map" and config.num_prefix_tokens > 0
    all_or_none = config.positions == "rope" or config.num_placed_tokens in (0, config.num_prefix_tokens)
    supported = {
        "positions": (config.positions in ("learned_1d", *ROTARY_POSITIONS), "learned_1d, rope, learned_1d_rope"),
        "stem": (config.stem == "patch", "patch"),
        "pooling": (config.pooling in ("cls", "gap", "map"), "cls, gap, map"),
        "pool_prefix": (config.pool_prefix == reads_prefix, f"{str(reads_prefix).lower()} with that pooling"),
        "feedforward": (config.feedforward in ("gelu", "swiglu"), "gelu, swiglu"),
        "norm": (config.norm == "layer", "layer"),
        "proj_bias": (config.proj_bias, "true"),
        "embedding_norm": (not config.embedding_norm, "false"),
        "qk_norm": (not config.qk_norm, "false"),
        "distillation_token": (not config.distillation_token, "false"),
        "representation_width": (config.representation_width is None, "none"),
        "head_bias": (config.head_bias, "true"),
        "positions_on_registers": (all_or_none, "true where model.positions_on_prefix is, and there are registers"),
    }
    for field, (met, choices) in supported.items():
        if not met:
            value = getattr(config, field)
            raise NoCounterpart(
                f"--to: timm has no model of EVA's blocks with model.{field} {value!r}; it has {choices}"
            )
