"""Facebook's original files where their names differ from timm's: DeiT-III, DINO, DINOv2, and MAE with its decoder.

Touvron et al. 2022; Caron et al. 2021; Oquab et al. 2023; He et al. 2022. DeiT's files, DINO's backbones and MAE's
encoders are in timm's names and need no table here. All of these models have the number of heads that their width
tells, which is what `HEADS` says; another width must be named.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vit.config import ViTConfig
from vit.weights.layout import Forward, Layout, Rule, Tensors, copied, split
from vit.weights.timm import RULES
from vit.weights.timm_models import build_timm

HEADS = {192: 3, 384: 6, 512: 8, 768: 12, 1024: 16, 1280: 16, 1536: 24}
"""Width → heads of Facebook's models."""
MASK_TOKEN = "stands for masked patches in pre-training"
_DROPPED = {
    "dino": {r"head\.(mlp|last_layer)\..*": "DINO's projection head, for pre-training"},
    "dinov2": {"mask_token": MASK_TOKEN},
    "mae": {r"decoder_.*": "MAE's decoder, which reconstructs pixels", "mask_token": MASK_TOKEN},
}


def _renamed(**names: str) -> tuple[Rule, ...]:
    """timm's rules with other names where `names` says so (dots as `__`, the layer's number and kind left out)."""
    changes = {f"blocks.{{layer}}.{old.replace('__', '.')}": f"blocks.{{layer}}.{new}" for old, new in names.items()}
    return tuple(replace(rule, theirs=tuple(changes.get(name, name) for name in rule.theirs)) for rule in RULES)


def _dinov2_rules() -> tuple[Rule, ...]:
    gate, expand, contract = (
        f"blocks.{{layer}}.feedforward.{part}.{{kind}}" for part in ("gate", "expand", "contract")
    )
    mlp = "blocks.{layer}.mlp."
    others = tuple(rule for rule in RULES if not rule.theirs[0].startswith((mlp, "reg_token")))
    return (
        *others,
        copied("register_tokens", "register_tokens"),
        copied(expand, f"{mlp}fc1.{{kind}}", when=_is_plain),
        copied(contract, f"{mlp}fc2.{{kind}}", when=_is_plain),
        split((gate, expand), f"{mlp}w12.{{kind}}", when=_is_gated),
        copied(contract, f"{mlp}w3.{{kind}}", when=_is_gated),
    )


def _is_gated(config: ViTConfig) -> bool:
    return config.feedforward == "swiglu"


def _is_plain(config: ViTConfig) -> bool:
    return config.feedforward != "swiglu"


def _config(tensors: Tensors, **options: Any) -> ViTConfig | None:
    """The architecture of tensors in Facebook's names; None for a width that is not theirs."""
    width, _, *patch = tensors["patch_embed.proj.weight"].shape
    if width not in HEADS:
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
        num_heads=HEADS[width],
        mlp_ratio=hidden * (1.5 if gated else 1) / width,
        feedforward="swiglu" if gated else "gelu",
        positions_on_prefix=on_class_token,
        num_classes=len(tensors["head.weight"]) if "head.weight" in tensors else 0,
        init="normal",
        **options,
    )


def _has(*names: str) -> Callable[[Tensors], bool]:
    return lambda tensors: "patch_embed.proj.weight" in tensors and all(name in tensors for name in names)


def _dinov2_config(tensors: Tensors) -> ViTConfig | None:
    registers = tensors["register_tokens"].shape[1] if "register_tokens" in tensors else 0
    return _config(tensors, layer_scale=1e-5, num_registers=registers)


def timm_reads(config: ViTConfig, tensors: Tensors) -> Forward:
    """timm's model with these tensors, as timm's own reader of Facebook's files takes them."""
    from timm.models.vision_transformer import checkpoint_filter_fn

    model = build_timm(replace(config, positions_on_prefix=config.positions_on_prefix and not config.num_registers))
    is_dinov2 = config.layer_scale is not None and "blocks.0.ls1.gamma" in tensors
    marked = dict(tensors) | ({"mask_token": tensors["cls_token"][0]} if is_dinov2 else {})  # by it timm knows DINOv2's
    model.load_state_dict(checkpoint_filter_fn(marked, model, adapt_layer_scale=True))
    return model.eval()


DEIT3 = Layout(
    name="facebook-deit3",
    recognizes=_has("blocks.0.gamma_1"),
    rules=_renamed(ls1__gamma="gamma_1", ls2__gamma="gamma_2"),
    config=lambda tensors: _config(tensors, layer_scale=1e-6),
    peer=timm_reads,
)
DINO = Layout(
    name="facebook-dino",
    recognizes=_has("head.mlp.0.weight"),
    rules=RULES,
    config=_config,
    peer=timm_reads,
    prefixes=("module.", "backbone."),
    dropped=_DROPPED["dino"],
)
DINOV2 = Layout(
    name="facebook-dinov2",
    recognizes=_has("mask_token", "blocks.0.ls1.gamma"),
    rules=_dinov2_rules(),
    config=_dinov2_config,
    peer=timm_reads,
    dropped=_DROPPED["dinov2"],
)
MAE = Layout(
    name="facebook-mae",
    recognizes=_has("decoder_embed.weight"),
    rules=RULES,
    config=_config,
    peer=timm_reads,
    dropped=_DROPPED["mae"],
)
LAYOUTS = (DEIT3, DINO, DINOV2, MAE)
