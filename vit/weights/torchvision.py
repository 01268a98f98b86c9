"""torchvision's names for a Vision Transformer's tensors (`vit_b_16` … `vit_h_14`), and ours.

The tensors determine the architecture: torchvision has three widths, each with its number of heads
(torchvision/models/vision_transformer.py).
"""

from __future__ import annotations

import math

from vit.config import ViTConfig
from vit.libraries.torchvision import HEADS_BY_WIDTH, build_torchvision, check_expressible
from vit.weights.layout import Forward, Layout, Tensors, block_rules, copied, positions, shape_of

_LAYER = "encoder.layers.encoder_layer_{layer}"
RULES = (
    copied("embedding.projection.{kind}", "conv_proj.{kind}"),
    copied("class_token", "class_token"),
    *positions("encoder.pos_embedding"),
    *block_rules(
        f"{_LAYER}.",
        *("ln_1.{kind}", "self_attention.in_proj_{kind}", "self_attention.out_proj.{kind}"),
        *("ln_2.{kind}", "mlp.0.{kind}", "mlp.3.{kind}"),
    ),
    copied("norm.{kind}", "encoder.ln.{kind}"),
    copied("representation.{kind}", "heads.pre_logits.{kind}"),
    copied("head.{kind}", "heads.head.{kind}"),
)


def torchvision_config(tensors: Tensors) -> ViTConfig | None:
    """Derive the architecture from the tensors; None for a width that torchvision does not have."""
    width, _, *patch = shape_of(tensors, "conv_proj.weight", 4)
    if width not in HEADS_BY_WIDTH:
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
        num_heads=HEADS_BY_WIDTH[width],
        mlp_ratio=len(first) / width,
        representation_width=None if representation is None else len(representation),
        num_classes=0 if head is None else len(head),
        init="normal",
    )


def torchvision_forward(config: ViTConfig, tensors: Tensors) -> Forward:
    """Build torchvision's own model with these tensors. ValueError for an architecture that it does not have."""
    model = build_torchvision(config)
    model.load_state_dict(dict(tensors))
    return model.eval()


TORCHVISION = Layout(
    name="torchvision",
    recognizes=lambda tensors: "encoder.pos_embedding" in tensors and "conv_proj.weight" in tensors,
    rules=RULES,
    config=torchvision_config,
    reference=torchvision_forward,
    check_config=check_expressible,
    position_resize="bicubic_corners",
)
