"""torchvision's names for a Vision Transformer's tensors (`vit_b_16` … `vit_h_14`), and ours; its model beside them.

The architecture is told by the tensors: torchvision has three widths, each with its number of heads
(torchvision/models/vision_transformer.py).
"""

from __future__ import annotations

import math
from functools import partial

from torch import nn

from vit.config import ViTConfig
from vit.weights.layout import Forward, Layout, Tensors, copied, positions

HEADS = {768: 12, 1024: 16, 1280: 16}
"""Width → heads of torchvision's models."""
NAMES = ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14")
PLAIN = (
    *("pooling", "class_token", "distillation_token", "num_registers", "positions", "positions_on_prefix"),
    *("feedforward", "qk_norm", "qkv_bias", "pre_norm", "final_norm", "head_bias", "layer_scale", "stem"),
)
"""Fields of `ViTConfig` that are at their defaults in every model of torchvision's."""
_LAYER = "encoder.layers.encoder_layer_{layer}"
RULES = (
    copied("embedding.projection.{kind}", "conv_proj.{kind}"),
    copied("class_token", "class_token"),
    *positions("encoder.pos_embedding"),
    copied("blocks.{layer}.norm1.{kind}", f"{_LAYER}.ln_1.{{kind}}"),
    copied("blocks.{layer}.attention.qkv.{kind}", f"{_LAYER}.self_attention.in_proj_{{kind}}"),
    copied("blocks.{layer}.attention.output.{kind}", f"{_LAYER}.self_attention.out_proj.{{kind}}"),
    copied("blocks.{layer}.norm2.{kind}", f"{_LAYER}.ln_2.{{kind}}"),
    copied("blocks.{layer}.feedforward.expand.{kind}", f"{_LAYER}.mlp.0.{{kind}}"),
    copied("blocks.{layer}.feedforward.contract.{kind}", f"{_LAYER}.mlp.3.{{kind}}"),
    copied("norm.{kind}", "encoder.ln.{kind}"),
    copied("representation.{kind}", "heads.pre_logits.{kind}"),
    copied("head.{kind}", "heads.head.{kind}"),
)


def _recognizes(tensors: Tensors) -> bool:
    return "encoder.pos_embedding" in tensors and "conv_proj.weight" in tensors


def torchvision_config(tensors: Tensors) -> ViTConfig | None:
    """The architecture that the tensors tell; None for a width that torchvision has no model of."""
    width, _, *patch = tensors["conv_proj.weight"].shape
    if width not in HEADS:
        return None
    side = math.isqrt(tensors["encoder.pos_embedding"].shape[1] - 1)
    representation = tensors.get("heads.pre_logits.weight")
    first = tensors[f"{_LAYER.format(layer=0)}.mlp.0.weight"]
    head = tensors.get("heads.head.weight")
    return ViTConfig(
        image_size=(side * patch[0], side * patch[1]),
        patch_size=(patch[0], patch[1]),
        width=width,
        depth=len([name for name in tensors if name.endswith(".ln_1.weight")]),
        num_heads=HEADS[width],
        mlp_ratio=len(first) / width,
        representation_width=None if representation is None else len(representation),
        num_classes=0 if head is None else len(head),
        init="normal",
    )


def torchvision_forward(config: ViTConfig, tensors: Tensors) -> Forward:
    """torchvision's own model with these tensors. ValueError for an architecture that it does not have."""
    model = build_torchvision(config)
    model.load_state_dict(dict(tensors))
    return model.eval()


def build_torchvision(config: ViTConfig) -> nn.Module:
    """torchvision's own Vision Transformer. ValueError for an architecture that it does not have."""
    from torchvision.models import VisionTransformer

    _check_expressible(config)
    return VisionTransformer(
        image_size=config.image_size[0],
        patch_size=config.patch_size[0],
        num_layers=config.depth,
        num_heads=config.num_heads,
        hidden_dim=config.width,
        mlp_dim=round(config.width * config.mlp_ratio),
        num_classes=config.num_classes,
        representation_size=config.representation_width,
        norm_layer=partial(nn.LayerNorm, eps=config.norm_eps),
    )


def _check_expressible(config: ViTConfig) -> None:
    plain = ViTConfig()
    for field in PLAIN:
        if getattr(config, field) != getattr(plain, field):
            raise ValueError(f"--to: torchvision has no model with model.{field} {getattr(config, field)!r}")
    for field in ("image_size", "patch_size"):
        height, width = getattr(config, field)
        if height != width:
            raise ValueError(f"--to: torchvision has no model with model.{field} {(height, width)}: not a square")
    if config.num_classes == 0:
        raise ValueError("--to: torchvision has no model with model.num_classes 0")


TORCHVISION = Layout(
    name="torchvision",
    recognizes=_recognizes,
    rules=RULES,
    config=torchvision_config,
    peer=torchvision_forward,
)
