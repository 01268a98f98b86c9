"""Hugging Face's ViT, DeiT and MAE: names of tensors (as in their files), and their configurations.

Dosovitskiy et al. 2020; Touvron et al. 2021; He et al. 2022 (MAE: the encoder without masking; its fixed positions are
read from the file as a learned table). The three use the same names with different prefixes.
"""

from __future__ import annotations

from typing import Any

from vit.config import ViTConfig
from vit.weights.hf_family import QUERY_KEY_VALUE, Family
from vit.weights.layout import MAE_DECODER, MASK_TOKEN, Layout, Rule, Tensors, block_rules, copied, positions

_PREFIXES = ("", "vit.", "deit.")


def _rules(prefix: str) -> tuple[Rule, ...]:
    embeddings = f"{prefix}embeddings."
    return (
        copied("class_token", f"{embeddings}cls_token"),
        copied("distillation_token", f"{embeddings}distillation_token"),
        *positions(f"{embeddings}position_embeddings"),
        copied("embedding.projection.{kind}", f"{embeddings}patch_embeddings.projection.{{kind}}"),
        *block_rules(
            f"{prefix}encoder.layer.{{layer}}.",
            "layernorm_before.{kind}",
            QUERY_KEY_VALUE,
            *("attention.output.dense.{kind}", "layernorm_after.{kind}"),
            *("intermediate.dense.{kind}", "output.dense.{kind}"),
        ),
        copied("norm.{kind}", f"{prefix}layernorm.{{kind}}"),
        copied("representation.{kind}", f"{prefix}pooler.dense.{{kind}}", when=_has_representation),
        copied("head.{kind}", "cls_classifier.{kind}", when=_has_two_heads),
        copied("distillation_head.{kind}", "distillation_classifier.{kind}", when=_has_two_heads),
        copied("head.{kind}", "classifier.{kind}", when=lambda config: not _has_two_heads(config)),
    )


def _has_representation(config: ViTConfig) -> bool:
    return config.representation_width is not None


def _has_two_heads(config: ViTConfig) -> bool:
    return config.distillation_token and config.distillation_head


def _layout(prefix: str) -> Layout:
    first = (f"{prefix}embeddings.cls_token", f"{prefix}encoder.layer.0.intermediate.dense.weight")
    return Layout(
        name=f"hf-vit ({prefix}…)" if prefix else "hf-vit",
        recognizes=lambda tensors: all(name in tensors for name in first),
        rules=_rules(prefix),
        position_resize="bicubic",
        dropped={rf"{prefix}embeddings\.mask_token": MASK_TOKEN, r"decoder\..*": MAE_DECODER},
    )


def _head_config(tensors: Tensors) -> dict[str, Any]:
    for name in ("classifier.weight", "cls_classifier.weight"):
        if name in tensors:
            return {"num_classes": len(tensors[name]), "representation_width": None}
    names = [f"{prefix}pooler.dense.weight" for prefix in _PREFIXES]
    pooler = next((tensors[name] for name in names if name in tensors), None)
    return {"num_classes": 0, "representation_width": None if pooler is None else len(pooler)}


def _deit_head_config(tensors: Tensors) -> dict[str, Any]:
    return _head_config(tensors) | {"distillation_head": "cls_classifier.weight" in tensors}


def _vit_class(config: ViTConfig) -> str:
    if config.num_classes == 0:
        return "ViTModel"
    if config.representation_width is not None:
        raise ValueError("model.representation_width must be None with a head")
    return "ViTForImageClassification"


def _deit_class(config: ViTConfig) -> str:
    name = _vit_class(config).replace("ViT", "DeiT")
    return f"{name}WithTeacher" if config.num_classes and config.distillation_head else name


_KEYS = {"qkv_bias": "qkv_bias"}
_DEFAULTS = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "qkv_bias": True}
_REQUIRED = {"pooler_act": "tanh"}
_DEIT_HEAD = ("representation_width", "distillation_head")
_DEIT = {"distillation_token": True}
VIT = Family("vit", _head_config, _vit_class, ("representation_width",), {}, _KEYS, _DEFAULTS, _REQUIRED)
DEIT = Family("deit", _deit_head_config, _deit_class, _DEIT_HEAD, _DEIT, _KEYS, _DEFAULTS, _REQUIRED)
MAE = Family("vit_mae", _head_config, lambda config: "ViTMAEModel", (), {}, _KEYS, _DEFAULTS)  # noqa: ARG005
LAYOUTS = tuple(_layout(prefix) for prefix in _PREFIXES)
