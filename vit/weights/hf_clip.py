"""Hugging Face's image towers of CLIP and SigLIP: names of tensors (as in their files), and their configurations.

Radford et al. 2021; Zhai et al. 2023. CLIP's projection into the space shared with text is our head, without a bias;
the text tower of a full model is dropped. SigLIP pools by attention.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vit.config import ViTConfig
from vit.weights.hf_family import Family
from vit.weights.layout import (
    TEXT_TOWER,
    Layout,
    Rule,
    Tensors,
    block_rules,
    copied,
    patch_rows,
    positions,
    reshaped,
    split,
)

_PREFIXES = ("", "vision_model.")


def _tower_rules(prefix: str, *, linear: bool = False) -> tuple[Rule, ...]:
    """`linear`: patches are embedded by a linear layer, not by a convolution."""
    patches = f"{prefix}embeddings.patch_embedding"
    convolution = copied("embedding.projection.{kind}", f"{patches}.{{kind}}")
    return (
        *(patch_rows(patches) if linear else (convolution,)),
        *positions(f"{prefix}embeddings.position_embedding.weight", "n c -> 1 n c"),
        *block_rules(
            f"{prefix}encoder.layers.{{layer}}.",
            "layer_norm1.{kind}",
            ("self_attn.q_proj.{kind}", "self_attn.k_proj.{kind}", "self_attn.v_proj.{kind}"),
            *("self_attn.out_proj.{kind}", "layer_norm2.{kind}", "mlp.fc1.{kind}", "mlp.fc2.{kind}"),
        ),
        copied("norm.{kind}", f"{prefix}post_layernorm.{{kind}}"),
    )


def _pooling_rules(head: str) -> tuple[Rule, ...]:
    projections = tuple(f"attention_pool.attention.{part}.{{kind}}" for part in ("query", "key", "value"))
    return (
        copied("attention_pool.probe", f"{head}probe"),
        split(projections, f"{head}attention.in_proj_{{kind}}"),
        copied("attention_pool.attention.output.{kind}", f"{head}attention.out_proj.{{kind}}"),
        copied("attention_pool.norm.{kind}", f"{head}layernorm.{{kind}}"),
        copied("attention_pool.feedforward.fc1.{kind}", f"{head}mlp.fc1.{{kind}}"),
        copied("attention_pool.feedforward.fc2.{kind}", f"{head}mlp.fc2.{{kind}}"),
    )


def _dropped(prefix: str) -> dict[str, str]:
    return {
        rf"{prefix}embeddings\.position_ids": "numbers the positions, in files of old versions",
        r"text_model\..*|text_projection\.weight|logit_scale|logit_bias": TEXT_TOWER,
    }


def _clip_layout(prefix: str) -> Layout:
    return Layout(
        name=f"hf-clip ({prefix}…)" if prefix else "hf-clip",
        recognizes=lambda tensors: f"{prefix}embeddings.class_embedding" in tensors,
        rules=(
            reshaped("class_token", f"{prefix}embeddings.class_embedding", "c -> 1 1 c"),
            copied("pre_norm.{kind}", f"{prefix}pre_layrnorm.{{kind}}"),
            *_tower_rules(prefix),
            copied("head.{kind}", "visual_projection.{kind}"),
        ),
        position_resize="bicubic",
        dropped=_dropped(prefix),
    )


def _siglip_layout(prefix: str, *, linear: bool) -> Layout:
    name = "hf-siglip2" if linear else "hf-siglip"

    def recognizes(tensors: Tensors) -> bool:
        patches = f"{prefix}embeddings.patch_embedding."
        return f"{patches}bias" in tensors and (tensors[f"{patches}weight"].dim() == 2) == linear

    return Layout(
        name=f"{name} ({prefix}…)" if prefix else name,
        recognizes=recognizes,
        rules=(*_tower_rules(prefix, linear=linear), *_pooling_rules(f"{prefix}head.")),
        position_resize="bilinear_antialiased" if linear else "bicubic",
        dropped=_dropped(prefix),
    )


def _refuse_classifier(tensors: Tensors, name: str) -> None:
    if "classifier.weight" in tensors:
        raise ValueError(f"model.pretrained: {name} is not supported: its head averages other tokens")


def _clip_head_config(tensors: Tensors) -> dict[str, Any]:
    _refuse_classifier(tensors, "CLIPForImageClassification")
    if "visual_projection.weight" in tensors:
        return {"num_classes": len(tensors["visual_projection.weight"]), "head_bias": False}
    return {"num_classes": 0}


def _siglip_head_config(tensors: Tensors) -> dict[str, Any]:
    _refuse_classifier(tensors, "SiglipForImageClassification")
    return {"num_classes": 0}


def _clip_class(config: ViTConfig) -> str:
    if config.num_classes and config.head_bias:
        raise ValueError("model.head_bias must be False: its head is a projection")
    return "CLIPVisionModelWithProjection" if config.num_classes else "CLIPVisionModel"


def _siglip_class(config: ViTConfig) -> str:
    if config.num_classes:
        raise ValueError("model.num_classes must be 0: it has no head")
    return "SiglipVisionModel"


CLIP = Family(
    "clip_vision_model",
    _clip_head_config,
    _clip_class,
    ("head_bias",),
    {"pre_norm": True},
    defaults={"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "patch_size": 32},
    square=True,
    nested_types=("clip",),
)
SIGLIP = Family(
    "siglip_vision_model",
    _siglip_head_config,
    _siglip_class,
    (),
    {"pooling": "map", "class_token": False},
    defaults={"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
    required={"vision_use_head": True},
    square=True,
    nested_types=("siglip",),
)
SIGLIP2 = replace(
    SIGLIP,
    model_type="siglip2_vision_model",
    architecture=lambda config: _siglip_class(config).replace("Siglip", "Siglip2"),
    defaults=dict(SIGLIP.defaults) | {"num_patches": 256},
    num_patches="num_patches",
    nested_types=("siglip2",),
)
"""At one image size; its positions are those of a square, and resized to other grids."""
LAYOUTS = (
    *(_clip_layout(prefix) for prefix in _PREFIXES),
    *(_siglip_layout(prefix, linear=linear) for prefix in _PREFIXES for linear in (False, True)),
)
