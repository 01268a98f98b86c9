"""Hugging Face's image towers of CLIP and SigLIP: names of tensors (as in their files), and their configurations.

Radford et al. 2021; Zhai et al. 2023. CLIP's projection into the space shared with text is our head, without a bias;
of a whole model the text's half is left out by name. SigLIP pools by attention.
"""

from __future__ import annotations

from typing import Any

from vit.config import ViTConfig
from vit.weights.hf_family import WITHOUT_ANTIALIASING, Family
from vit.weights.layout import Layout, Rule, Tensors, copied, fused, positions, reshaped, split

_PREFIXES = ("", "vision_model.")
TEXT = "the text's half of the model"
_POOLED = "attention_pool."


def _block_rules(layers: str) -> tuple[Rule, ...]:
    parts = tuple(f"{layers}self_attn.{part}_proj.{{kind}}" for part in "qkv")
    return (
        copied("blocks.{layer}.norm1.{kind}", f"{layers}layer_norm1.{{kind}}"),
        fused("blocks.{layer}.attention.qkv.{kind}", parts),
        copied("blocks.{layer}.attention.output.{kind}", f"{layers}self_attn.out_proj.{{kind}}"),
        copied("blocks.{layer}.norm2.{kind}", f"{layers}layer_norm2.{{kind}}"),
        copied("blocks.{layer}.feedforward.expand.{kind}", f"{layers}mlp.fc1.{{kind}}"),
        copied("blocks.{layer}.feedforward.contract.{kind}", f"{layers}mlp.fc2.{{kind}}"),
    )


def _tower_rules(prefix: str) -> tuple[Rule, ...]:
    return (
        copied("embedding.projection.{kind}", f"{prefix}embeddings.patch_embedding.{{kind}}"),
        *positions(f"{prefix}embeddings.position_embedding.weight", "n c -> 1 n c"),
        *_block_rules(f"{prefix}encoder.layers.{{layer}}."),
        copied("norm.{kind}", f"{prefix}post_layernorm.{{kind}}"),
    )


def _pooling_rules(head: str) -> tuple[Rule, ...]:
    three = tuple(f"{_POOLED}attention.{part}.{{kind}}" for part in ("query", "key", "value"))
    return (
        copied(f"{_POOLED}probe", f"{head}probe"),
        split(three, f"{head}attention.in_proj_{{kind}}"),
        copied(f"{_POOLED}attention.output.{{kind}}", f"{head}attention.out_proj.{{kind}}"),
        copied(f"{_POOLED}norm.{{kind}}", f"{head}layernorm.{{kind}}"),
        copied(f"{_POOLED}feedforward.expand.{{kind}}", f"{head}mlp.fc1.{{kind}}"),
        copied(f"{_POOLED}feedforward.contract.{{kind}}", f"{head}mlp.fc2.{{kind}}"),
    )


def _dropped(prefix: str) -> dict[str, str]:
    return {
        rf"{prefix}embeddings\.position_ids": "numbers the positions, in files of old versions",
        r"text_model\..*|text_projection\.weight|logit_scale|logit_bias": TEXT,
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
        config=lambda tensors: None,  # noqa: ARG005 - `config.json` tells it
        when_resized=WITHOUT_ANTIALIASING,
        dropped=_dropped(prefix),
    )


def _siglip_layout(prefix: str) -> Layout:
    return Layout(
        name=f"hf-siglip ({prefix}…)" if prefix else "hf-siglip",
        recognizes=lambda tensors: f"{prefix}embeddings.patch_embedding.bias" in tensors,
        rules=(*_tower_rules(prefix), *_pooling_rules(f"{prefix}head.")),
        config=lambda tensors: None,  # noqa: ARG005 - `config.json` tells it
        when_resized=WITHOUT_ANTIALIASING,
        dropped=_dropped(prefix),
    )


def _refuse_classifier(tensors: Tensors, name: str) -> None:
    if "classifier.weight" in tensors:
        raise ValueError(f"model.pretrained: {name} is not supported: its head reads the mean of other tokens")


def _of_clip_heads(tensors: Tensors) -> dict[str, Any]:
    _refuse_classifier(tensors, "CLIPForImageClassification")
    if "visual_projection.weight" in tensors:
        return {"num_classes": len(tensors["visual_projection.weight"]), "head_bias": False}
    return {"num_classes": 0}


def _of_siglip_heads(tensors: Tensors) -> dict[str, Any]:
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
    _of_clip_heads,
    _clip_class,
    ("head_bias",),
    {"pre_norm": True},
    defaults={"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "patch_size": 32},
    square=True,
    nested_types=("clip",),
)
SIGLIP = Family(
    "siglip_vision_model",
    _of_siglip_heads,
    _siglip_class,
    (),
    {"pooling": "map", "class_token": False},
    defaults={"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
    required={"vision_use_head": True},
    square=True,
    nested_types=("siglip",),
)
LAYOUTS = (*(_clip_layout(prefix) for prefix in _PREFIXES), *(_siglip_layout(prefix) for prefix in _PREFIXES))
