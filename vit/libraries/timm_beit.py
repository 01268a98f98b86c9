"""timm's BEiT and BEiT-2 as architectures of ours, and back. Bao et al. 2021; Peng et al. 2022."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from vit.config import ViTConfig
from vit.libraries import NoCounterpart
from vit.libraries.timm_ratio import exact_ratio


def unsupported_part(model: Any) -> str | None:
    """The first part of a `Beit` that our Vision Transformer does not compute."""
    block = model.blocks[0]
    parts = {
        "positions of both kinds, absolute and relative": model.pos_embed is not None and _tables(model) is not None,
        "a norm in a feed-forward layer without a gate": type(block.mlp).__name__ == "Mlp"
        and not isinstance(block.mlp.norm, nn.Identity),
    }
    return next((what for what, present in parts.items() if present), None)


def own_options(model: Any) -> dict[str, Any]:
    """Fields of `ViTConfig` that a `Beit` sets beside those of any of timm's Vision Transformers."""
    block, tables = model.blocks[0], _tables(model)
    options = {"qkv_bias": block.attn.q_bias is not None, "layer_scale": block.init_values or None}
    if tables is None:
        return options
    return options | {
        "positions": "relative",
        "position_resize": "geometric",
        "relative_tables": tables,
        "relative_prefix": True,
    }


def _tables(model: Any) -> str | None:
    """`ViTConfig.relative_tables`; None for a model without relative biases."""
    shared, own = model.rel_pos_bias is not None, model.blocks[0].attn.relative_position_bias_table is not None
    return {(True, True): "both", (True, False): "shared", (False, True): "blocks"}.get((shared, own))


def beit_forward(config: ViTConfig, tensors: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor]:
    """Build timm's own `Beit` with these tensors. NoCounterpart where timm has no such architecture."""
    model = build_beit(config)
    model.load_state_dict(dict(tensors))
    return model.eval()


def build_beit(config: ViTConfig) -> nn.Module:
    """Build timm's own `Beit`. NoCounterpart where timm has no such architecture."""
    from timm.models.beit import Beit

    check_expressible(config)
    return Beit(
        img_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        global_pool={"cls": "token", "gap": "avg"}[config.pooling],
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.num_heads,
        qkv_bias=config.qkv_bias,
        mlp_ratio=exact_ratio(round(config.width * config.mlp_ratio), config.width),
        norm_layer=partial(nn.LayerNorm, eps=config.norm_eps),
        init_values=config.layer_scale,
        use_abs_pos_emb=False,
        use_rel_pos_bias=config.relative_tables != "shared",
        use_shared_rel_pos_bias=config.relative_tables != "blocks",
        use_fc_norm=config.final_norm == "pooled",
    )


def check_expressible(config: ViTConfig) -> None:
    """NoCounterpart, naming the setting, for an architecture that timm's `Beit` does not have."""
    supported = {
        "relative_prefix": (config.relative_prefix, "true"),
        "class_token": (config.class_token, "true"),
        "distillation_token": (not config.distillation_token, "false"),
        "num_registers": (config.num_registers == 0, "0"),
        "stem": (config.stem == "patch", "patch"),
        "pooling": (config.pooling in ("cls", "gap"), "cls, gap"),
        "final_norm": (config.final_norm != "none", "tokens, pooled"),
        "pre_norm": (not config.pre_norm, "false"),
        "feedforward": (config.feedforward == "gelu", "gelu"),
        "qkv_bias": (config.qkv_bias, "true"),
        "qk_norm": (not config.qk_norm, "false"),
        "attention_norm": (not config.attention_norm, "false"),
        "norm": (config.norm == "layer", "layer"),
        "embedding_norm": (not config.embedding_norm, "false"),
        "proj_bias": (config.proj_bias, "true"),
        "pool_prefix": (not config.pool_prefix, "false"),
        "representation_width": (config.representation_width is None, "none"),
        "head_bias": (config.head_bias, "true"),
    }
    for field, (met, choices) in supported.items():
        if not met:
            value = getattr(config, field)
            raise NoCounterpart(
                f"--to: timm has no model of relative biases with model.{field} {value!r}; it has {choices}"
            )
