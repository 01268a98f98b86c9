"""Hugging Face's ViT, DeiT and MAE: names of tensors (as in their files), and their configurations.

Dosovitskiy et al. 2020; Touvron et al. 2021; He et al. 2022 (MAE: the encoder without masking; its fixed positions
stand in the file as a table, and are read as one). The three write the same names under different prefixes.
"""

from __future__ import annotations

from typing import Any

from vit.config import ViTConfig
from vit.weights.hf_family import WITHOUT_ANTIALIASING, Family
from vit.weights.layout import Layout, Rule, Tensors, copied, fused, positions

DECODER = "MAE's decoder, which reconstructs pixels"
_PREFIXES = ("", "vit.", "deit.")


def _block_rules(layers: str) -> tuple[Rule, ...]:
    parts = tuple(f"{layers}attention.attention.{part}.{{kind}}" for part in ("query", "key", "value"))
    return (
        copied("blocks.{layer}.norm1.{kind}", f"{layers}layernorm_before.{{kind}}"),
        fused("blocks.{layer}.attention.qkv.{kind}", parts),
        copied("blocks.{layer}.attention.output.{kind}", f"{layers}attention.output.dense.{{kind}}"),
        copied("blocks.{layer}.norm2.{kind}", f"{layers}layernorm_after.{{kind}}"),
        copied("blocks.{layer}.feedforward.expand.{kind}", f"{layers}intermediate.dense.{{kind}}"),
        copied("blocks.{layer}.feedforward.contract.{kind}", f"{layers}output.dense.{{kind}}"),
    )


def _rules(prefix: str) -> tuple[Rule, ...]:
    embeddings = f"{prefix}embeddings."
    return (
        copied("class_token", f"{embeddings}cls_token"),
        copied("distillation_token", f"{embeddings}distillation_token"),
        *positions(f"{embeddings}position_embeddings"),
        copied("embedding.projection.{kind}", f"{embeddings}patch_embeddings.projection.{{kind}}"),
        *_block_rules(f"{prefix}encoder.layer.{{layer}}."),
        copied("norm.{kind}", f"{prefix}layernorm.{{kind}}"),
        copied("representation.{kind}", f"{prefix}pooler.dense.{{kind}}", when=_has_representation),
        copied("head.{kind}", "cls_classifier.{kind}", when=_has_two_heads),
        copied("distillation_head.{kind}", "distillation_classifier.{kind}", when=_has_two_heads),
        copied("head.{kind}", "classifier.{kind}", when=lambda config: not _has_two_heads(config)),
    )


def _has_two_heads(config: ViTConfig) -> bool:
    return config.distillation_token and config.distillation_head


def _has_representation(config: ViTConfig) -> bool:
    return config.representation_width is not None


def _layout(prefix: str) -> Layout:
    first = (f"{prefix}embeddings.cls_token", f"{prefix}encoder.layer.0.intermediate.dense.weight")
    return Layout(
        name=f"hf-vit ({prefix}…)" if prefix else "hf-vit",
        recognizes=lambda tensors: all(name in tensors for name in first),
        rules=_rules(prefix),
        config=lambda tensors: None,  # noqa: ARG005 - `config.json` tells it
        when_resized=WITHOUT_ANTIALIASING,
        dropped={
            rf"{prefix}embeddings\.mask_token": "stands for masked patches in pre-training",
            r"decoder\..*": DECODER,
        },
    )


def _of_heads(tensors: Tensors) -> dict[str, Any]:
    for name in ("classifier.weight", "cls_classifier.weight"):
        if name in tensors:
            return {"num_classes": len(tensors[name]), "representation_width": None}
    names = [f"{prefix}pooler.dense.weight" for prefix in _PREFIXES]
    pooler = next((tensors[name] for name in names if name in tensors), None)
    return {"num_classes": 0, "representation_width": None if pooler is None else len(pooler)}


def _of_deit_heads(tensors: Tensors) -> dict[str, Any]:
    return _of_heads(tensors) | {"distillation_head": "cls_classifier.weight" in tensors}


def _vit_class(config: ViTConfig) -> str:
    if config.num_classes == 0:
        return "ViTModel"
    if config.representation_width is not None:
        raise ValueError("model.representation_width must be None beside a head")
    return "ViTForImageClassification"


def _deit_class(config: ViTConfig) -> str:
    name = _vit_class(config).replace("ViT", "DeiT")
    return f"{name}WithTeacher" if config.num_classes and config.distillation_head else name


_KEYS = {"qkv_bias": "qkv_bias"}
_DEFAULTS = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "qkv_bias": True}
_REQUIRED = {"pooler_act": "tanh"}
VIT = Family("vit", _of_heads, _vit_class, ("representation_width",), {}, _KEYS, _DEFAULTS, _REQUIRED)
DEIT = Family(
    "deit",
    _of_deit_heads,
    _deit_class,
    ("representation_width", "distillation_head"),
    {"distillation_token": True},
    _KEYS,
    _DEFAULTS,
    _REQUIRED,
)
MAE = Family("vit_mae", _of_heads, lambda config: "ViTMAEModel", (), {}, _KEYS, _DEFAULTS)  # noqa: ARG005
LAYOUTS = tuple(_layout(prefix) for prefix in _PREFIXES)
