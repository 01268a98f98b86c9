"""Facebook's original files where their names differ from timm's: DeiT-III, DINO, DINOv2, DINOv3, MAE with its decoder.

Touvron et al. 2022; Caron et al. 2021; Oquab et al. 2023; Siméoni et al. 2025; He et al. 2022. DeiT's files, DINO's
backbones and MAE's encoders use timm's names and need no table here. The width determines the number of heads
(`HEADS_BY_WIDTH`; DINOv3's files determine it themselves); a model of another width must be named.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vit.config import ViTConfig
from vit.libraries.timm_eva import build_eva
from vit.libraries.timm_writing import build_timm
from vit.weights.layout import (
    MAE_DECODER,
    MASK_TOKEN,
    Forward,
    Layout,
    Rule,
    Tensors,
    copied,
    is_gated,
    is_plain,
    shape_of,
    split,
)
from vit.weights.timm import RULES, is_named_as_eva

HEADS_BY_WIDTH = {192: 3, 384: 6, 512: 8, 768: 12, 1024: 16, 1280: 16, 1536: 24}
"""Width → heads of Facebook's models."""
DINOV3_TEMPERATURE = 100.0


def _deit3_rules() -> tuple[Rule, ...]:
    names = {f"blocks.{{layer}}.ls{number}.gamma": f"blocks.{{layer}}.gamma_{number}" for number in (1, 2)}
    return tuple(replace(rule, theirs=tuple(names.get(name, name) for name in rule.theirs)) for rule in RULES)


def _dinov2_rules() -> tuple[Rule, ...]:
    gate, fc1, fc2 = (f"blocks.{{layer}}.feedforward.{part}.{{kind}}" for part in ("gate", "fc1", "fc2"))
    mlp = "blocks.{layer}.mlp."
    others = tuple(rule for rule in RULES if not rule.theirs[0].startswith((mlp, "reg_token")))
    return (
        *others,
        copied("register_tokens", "register_tokens"),
        copied(fc1, f"{mlp}fc1.{{kind}}", when=is_plain),
        copied(fc2, f"{mlp}fc2.{{kind}}", when=is_plain),
        split((gate, fc1), f"{mlp}w12.{{kind}}", when=is_gated),
        copied(fc2, f"{mlp}w3.{{kind}}", when=is_gated),
    )


def _dinov3_rules() -> tuple[Rule, ...]:
    """DINOv2's but for registers, gate and the bias of queries, keys and values, which has a mask."""
    names = {"register_tokens": "storage_tokens"}
    own = ("blocks.{layer}.feedforward.", "blocks.{layer}.attention.qkv.", "positions.", "embedding_norm")
    shared = (rule for rule in _dinov2_rules() if not rule.ours[0].startswith(own))
    ours, theirs = "blocks.{layer}.attention.qkv.", "blocks.{layer}.attn.qkv."
    bias = (f"{theirs}bias", f"{theirs}bias_mask")
    gated = (("gate", "w1"), ("fc1", "w2"), ("fc2", "w3"))
    plain = (("fc1", "fc1"), ("fc2", "fc2"))
    return (
        *(replace(rule, theirs=tuple(names.get(name, name) for name in rule.theirs)) for rule in shared),
        copied(f"{ours}weight", f"{theirs}weight"),
        Rule((f"{ours}bias",), bias, to_ours=_unmasked, to_theirs=_masked),
        *(
            copied(f"blocks.{{layer}}.feedforward.{here}.{{kind}}", f"blocks.{{layer}}.mlp.{there}.{{kind}}", when=when)
            for pairs, when in ((gated, is_gated), (plain, is_plain))
            for here, there in pairs
        ),
    )


def _unmasked(pieces: list[Tensor], config: ViTConfig) -> list[Tensor]:  # noqa: ARG001
    """The bias times its mask, which is 0 for the keys."""
    bias, mask = pieces
    return [bias * mask]


def _masked(pieces: list[Tensor], config: ViTConfig) -> list[Tensor]:  # noqa: ARG001
    (bias,) = pieces
    mask = torch.ones_like(bias)
    mask.chunk(3)[1].zero_()
    if bias.chunk(3)[1].any():
        raise ValueError("the keys have a bias, which is not 0; the library's model has none")
    return [bias, mask]


def _dinov3_config(tensors: Tensors) -> ViTConfig:
    """The periods of the rotation determine the heads. ValueError for those of another temperature."""
    width, _, *patch = shape_of(tensors, "patch_embed.proj.weight", 4)
    periods = tensors["rope_embed.periods"].float()
    count = len(periods)
    expected = DINOV3_TEMPERATURE ** (torch.arange(count) / count)
    if not torch.allclose(periods, expected, rtol=2**-7):  # files have them in bfloat16
        raise ValueError(f"rope_embed.periods are not those of the temperature {DINOV3_TEMPERATURE}")
    gated = "blocks.0.mlp.w1.weight" in tensors
    hidden = tensors["blocks.0.mlp.w3.weight" if gated else "blocks.0.mlp.fc2.weight"].shape[1]
    return ViTConfig(
        image_size=(16 * patch[0], 16 * patch[1]),
        patch_size=(patch[0], patch[1]),
        width=width,
        depth=sum(name.startswith("blocks.") and name.endswith(".norm1.weight") for name in tensors),
        num_heads=width // (4 * count),
        mlp_ratio=hidden * (1.5 if gated else 1) / width,
        feedforward="swiglu" if gated else "gelu",
        positions="rope",
        rope_temperature=DINOV3_TEMPERATURE,
        rope_coordinates="centred",
        num_registers=tensors["storage_tokens"].shape[1] if "storage_tokens" in tensors else 0,
        qkv_bias="blocks.0.attn.qkv.bias" in tensors,
        num_classes=0,
        layer_scale=1e-5,
        norm_eps=1e-5,
        init="normal",
    )


def _dinov3_forward(config: ViTConfig, tensors: Tensors) -> Forward:
    """Build timm's model with these tensors, through timm's own reader of Facebook's files."""
    from timm.models.eva import checkpoint_filter_fn

    model = build_eva(config, gate_apart=True)
    model.load_state_dict(checkpoint_filter_fn(dict(tensors), model))
    return model.eval()


def _config(tensors: Tensors, **options: Any) -> ViTConfig | None:
    """Derive the architecture from the tensors; None for a width that is not in `HEADS_BY_WIDTH`."""
    width, _, *patch = shape_of(tensors, "patch_embed.proj.weight", 4)
    if width not in HEADS_BY_WIDTH:
        return None
    count = tensors["pos_embed"].shape[1]
    on_class_token = math.isqrt(count) ** 2 != count
    side = math.isqrt(count - on_class_token)
    gated = "blocks.0.mlp.w12.weight" in tensors
    hidden = tensors["blocks.0.mlp.w3.weight" if gated else "blocks.0.mlp.fc2.weight"].shape[1]
    return ViTConfig(
        image_size=(side * patch[0], side * patch[1]),
        patch_size=(patch[0], patch[1]),
        width=width,
        depth=sum(name.endswith(".norm1.weight") and not name.startswith("decoder") for name in tensors),
        num_heads=HEADS_BY_WIDTH[width],
        mlp_ratio=hidden * (1.5 if gated else 1) / width,
        feedforward="swiglu" if gated else "gelu",
        positions_on_prefix=on_class_token,
        num_classes=len(tensors["head.weight"]) if "head.weight" in tensors else 0,
        init="normal",
        **options,
    )


def _has(*names: str) -> Callable[[Tensors], bool]:
    return lambda tensors: "patch_embed.proj.weight" in tensors and all(name in tensors for name in names)


def facebook_forward(config: ViTConfig, tensors: Tensors) -> Forward:
    """Build timm's model with these tensors, through timm's own reader of Facebook's files."""
    from timm.models.vision_transformer import checkpoint_filter_fn

    model = build_timm(replace(config, positions_on_prefix=config.positions_on_prefix and not config.num_registers))
    is_dinov2 = config.layer_scale is not None and "blocks.0.ls1.gamma" in tensors
    # timm recognizes DINOv2's files by their mask token
    complete = dict(tensors) | ({"mask_token": tensors["cls_token"][0]} if is_dinov2 else {})
    model.load_state_dict(checkpoint_filter_fn(complete, model, adapt_layer_scale=True))
    return model.eval()


def _is_deit3(tensors: Tensors) -> bool:
    """Models of EVA's blocks have the scales' names too: with rotary positions in place of learned ones or with learned
    rotations, or with a norm before the blocks."""
    own = _has("blocks.0.gamma_1", "pos_embed", "blocks.0.attn.qkv.bias")
    return own(tensors) and not {"rope.freqs", "norm_pre.weight"} & set(tensors)


DEIT3 = Layout(
    name="facebook-deit3",
    recognizes=_is_deit3,
    fits=lambda config, tensors: not is_named_as_eva(config, tensors),
    rules=_deit3_rules(),
    undetermined="whether positions are also rotary, as in timm's vit_*_rope_ape_*; name it, as deit3_base_patch16_224 "
    "or vit_base_patch16_rope_ape_224",
    reference=facebook_forward,
    position_resize="bicubic",
)
DINO = Layout(
    name="facebook-dino",
    recognizes=_has("head.mlp.0.weight"),
    rules=RULES,
    config=_config,
    reference=facebook_forward,
    position_resize="bicubic_offset",
    prefixes=("backbone.",),
    dropped={r"head\.(mlp|last_layer)\..*": "DINO's projection head, for pre-training"},
)
DINOV2 = Layout(
    name="facebook-dinov2",
    recognizes=_has("mask_token", "pos_embed", "blocks.0.ls1.gamma"),
    rules=_dinov2_rules(),
    config=lambda tensors: _config(
        tensors,
        layer_scale=1e-5,
        num_registers=tensors["register_tokens"].shape[1] if "register_tokens" in tensors else 0,
    ),
    reference=facebook_forward,
    position_resize="bicubic_offset",
    dropped={"mask_token": MASK_TOKEN},
)
MAE = Layout(
    name="facebook-mae",
    recognizes=_has("decoder_embed.weight"),
    rules=RULES,
    config=_config,
    reference=facebook_forward,
    position_resize="bicubic",
    dropped={r"decoder_.*": MAE_DECODER, "mask_token": MASK_TOKEN},
)
DINOV3 = Layout(
    name="facebook-dinov3",
    recognizes=_has("rope_embed.periods", "blocks.0.ls1.gamma"),
    rules=_dinov3_rules(),
    config=_dinov3_config,
    reference=_dinov3_forward,
    dropped={
        "mask_token": MASK_TOKEN,
        r"rope_embed\.periods": "the periods of the rotation, which are computed",
        r"local_cls_norm\..*": "the norm of crops in pre-training",
    },
)
LAYOUTS = (DEIT3, DINO, DINOV3, DINOV2, MAE)
