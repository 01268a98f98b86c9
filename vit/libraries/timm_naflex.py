"""timm's NaFlexVit at one image size, which is a plain Vision Transformer: its architecture, and the model itself.

Dehghani et al. 2023 (NaViT); SigLIP 2: Tschannen et al. 2025; C-RADIO: Heinrich et al. 2024. Its table of positions has
a grid of its own, from which it is resized to every image.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import nn

from vit.config import PositionResize, ViTConfig
from vit.libraries import NoCounterpart
from vit.libraries.timm_ratio import exact_ratio

RESIZES: dict[tuple[str, bool, bool, bool], PositionResize] = {
    ("bicubic", True, False, False): "bicubic_antialiased",
    ("bicubic", True, False, True): "bicubic_square",
    ("bilinear", True, False, False): "bilinear_antialiased",
    ("bilinear", False, False, True): "bilinear_square",
    ("bilinear", False, True, True): "bilinear_corners_square",
}
"""Mode, antialiased, corner to corner, through a square → `model.position_resize`."""


def unsupported_part(model: Any) -> str | None:
    """The first part of a `NaFlexVit` that our Vision Transformer does not compute."""
    embeds, block = model.embeds, type(model.blocks[0]).__name__
    parts = {
        f"blocks of the class {block}": block != "Block",
        "rotary positions in NaFlexVit": model.rope is not None,
        f"{embeds.pos_embed_type} positions": embeds.pos_embed_type != "learned",
        "a norm of the pixels of a patch": embeds.norm_input is not None,
        "pixels of a patch with channels first": not embeds.channels_last,
        "a patch embedding that is no linear layer": not embeds.is_linear,
        f"positions resized by {_way(model)}": _way(model) not in RESIZES,
    }
    return next((what for what, present in parts.items() if present), None)


def position_resize(model: Any) -> PositionResize:
    return RESIZES[_way(model)]


def _way(model: Any) -> tuple[str, bool, bool, bool]:
    embeds = model.embeds
    return (
        embeds.pos_embed_interp_mode,
        embeds.pos_embed_antialias,
        embeds.pos_embed_align_corners,
        embeds.pos_embed_ar_preserving,
    )


def plain_view(model: Any) -> Any:
    """The attributes of timm's plain VisionTransformer that equals a `NaFlexVit` on the grid of its own positions."""
    embeds = model.embeds
    size = tuple(grid * patch for grid, patch in zip(embeds.pos_embed.shape[1:3], embeds.patch_size, strict=True))
    own = ("blocks", "num_classes", "embed_dim", "global_pool", "attn_pool", "norm_pre", "norm", "fc_norm", "modules")
    return SimpleNamespace(
        **{name: getattr(model, name) for name in own},
        patch_embed=SimpleNamespace(img_size=size, patch_size=embeds.patch_size, norm=embeds.norm),
        cls_token=embeds.cls_token,
        reg_token=embeds.reg_token,
        pos_embed=embeds.pos_embed,
        no_embed_class=True,
        pool_include_prefix=model.pool_include_prefix,
    )


def build_naflex(config: ViTConfig) -> nn.Module:
    """timm's own `NaFlexVit`. NoCounterpart where it has no such architecture."""
    from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg

    ways = {ours: theirs for theirs, ours in RESIZES.items()}
    if config.feedforward == "swiglu" or config.position_resize not in ways:
        names = f"model.feedforward {config.feedforward!r} with model.position_resize {config.position_resize!r}"
        raise NoCounterpart(f"--to: timm has no NaFlexVit with {names}")
    mode, antialias, corners, square = ways[config.position_resize]
    pool_ratio = None
    if config.pool_mlp_ratio is not None:
        pool_ratio = exact_ratio(round(config.width * config.pool_mlp_ratio), config.width)
    settings = NaFlexVitCfg(
        patch_size=config.patch_size,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_ratio=exact_ratio(round(config.width * config.mlp_ratio), config.width),
        qkv_bias=config.qkv_bias,
        qk_norm=config.qk_norm,
        proj_bias=config.proj_bias,
        init_values=config.layer_scale,
        class_token=config.class_token,
        reg_tokens=config.num_registers,
        pos_embed_grid_size=config.grid_size,
        pos_embed_interp_mode=mode,
        pos_embed_antialias=antialias,
        pos_embed_align_corners=corners,
        pos_embed_ar_preserving=square,
        pre_norm=config.pre_norm,
        final_norm=config.final_norm != "none",
        fc_norm=config.final_norm == "pooled",
        global_pool={"cls": "token", "gap": "avg", "map": "map"}[config.pooling],
        pool_include_prefix=config.pool_prefix,
        attn_pool_num_heads=config.pool_heads,
        attn_pool_mlp_ratio=pool_ratio,
        act_layer=config.feedforward,
    )
    return NaFlexVit(settings, num_classes=config.num_classes)
