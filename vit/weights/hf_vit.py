"""Hugging Face's ViT, DeiT, MAE, MSN and I-JEPA: names of tensors (as in their files), and their configurations.

Dosovitskiy et al. 2020; Touvron et al. 2021; He et al. 2022 (MAE: the encoder without masking; its fixed positions are
read from the file as a learned table); Assran et al. 2022 and 2023 (I-JEPA has no class token, and its features are the
mean of its patches). All use the same names with different prefixes.
"""

from __future__ import annotations

from typing import Any

from vit.config import ViTConfig
from vit.weights.hf_family import QUERY_KEY_VALUE, Family
from vit.weights.layout import MAE_DECODER, MASK_TOKEN, Layout, Rule, Tensors, block_rules, copied, positions

_PREFIXES = ("", "vit.", "deit.", "ijepa.")


def _rules(prefix: str, of_layers: str) -> tuple[Rule, ...]:
    embeddings = f"{prefix}embeddings."
    return (
        copied("class_token", f"{embeddings}cls_token"),
        copied("distillation_token", f"{embeddings}distillation_token"),
        *positions(f"{embeddings}position_embeddings"),
        copied("embedding.projection.{kind}", f"{embeddings}patch_embeddings.projection.{{kind}}"),
        *block_rules(
            f"{of_layers}encoder.layer.{{layer}}.",
            "layernorm_before.{kind}",
            QUERY_KEY_VALUE,
            *("attention.output.dense.{kind}", "layernorm_after.{kind}"),
            *("intermediate.dense.{kind}", "output.dense.{kind}"),
        ),
        copied("norm.{kind}", f"{prefix}layernorm.{{kind}}"),
        copied(
            "representation.{kind}",
            f"{prefix}pooler.dense.{{kind}}",
            when=lambda config: config.representation_width is not None,
        ),
        copied("head.{kind}", "cls_classifier.{kind}", when=_has_two_heads),
        copied("distillation_head.{kind}", "distillation_classifier.{kind}", when=_has_two_heads),
        copied("head.{kind}", "classifier.{kind}", when=lambda config: not _has_two_heads(config)),
    )


def _has_two_heads(config: ViTConfig) -> bool:
    return config.distillation_token and config.distillation_head


def _layout(prefix: str, of_layers: str | None = None) -> Layout:
    """`of_layers`: the prefix of the layers, where it is another."""
    layers = prefix if of_layers is None else of_layers
    first = (f"{prefix}embeddings.position_embeddings", f"{layers}encoder.layer.0.intermediate.dense.weight")
    name = f"hf-vit ({prefix}…)" if prefix else "hf-vit"
    return Layout(
        name=name if of_layers is None else f"{name}, layers apart",
        recognizes=lambda tensors: all(name in tensors for name in first),
        rules=_rules(prefix, layers),
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
    if config.num_classes == 0 and config.distillation_head:
        raise ValueError("model.distillation_head must be False without a head: DeiTModel gives the class token alone")
    name = _vit_class(config).replace("ViT", "DeiT")
    return f"{name}WithTeacher" if config.num_classes and config.distillation_head else name


def _pooler(config: ViTConfig) -> dict[str, Any]:
    width = config.representation_width
    return {} if width is None else {"pooler_output_size": width}


def _msn_class(config: ViTConfig) -> str:
    return "ViTMSNForImageClassification" if config.num_classes else "ViTMSNModel"


def _ijepa_class(config: ViTConfig) -> str:
    return "IJepaForImageClassification" if config.num_classes else "IJepaModel"


_KEYS = {"qkv_bias": "qkv_bias"}
_DEFAULTS = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "qkv_bias": True}
_REQUIRED = {"pooler_act": "tanh"}
_DEIT_HEAD = ("representation_width", "distillation_head")
_DEIT = {"distillation_token": True}
_VIT_HEAD = ("representation_width",)
VIT = Family("vit", _head_config, _vit_class, _VIT_HEAD, {}, _KEYS, _DEFAULTS, _REQUIRED, written=_pooler)
DEIT = Family("deit", _deit_head_config, _deit_class, _DEIT_HEAD, _DEIT, _KEYS, _DEFAULTS, _REQUIRED, written=_pooler)
MSN = Family("vit_msn", _head_config, _msn_class, (), {}, _KEYS, _DEFAULTS | {"layer_norm_eps": 1e-6})
IJEPA = Family("ijepa", _head_config, _ijepa_class, (), {"pooling": "gap", "class_token": False}, _KEYS, _DEFAULTS)
MAE = Family("vit_mae", _head_config, lambda config: "ViTMAEModel", (), {}, _KEYS, _DEFAULTS)  # noqa: ARG005
LAYOUTS = (
    *(_layout(prefix) for prefix in _PREFIXES),
    _layout("vit.", of_layers=""),  # as transformers 5.23 writes ViTMSNForImageClassification
)
