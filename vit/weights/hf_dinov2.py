"""Hugging Face's DINOv2, with and without registers: names of tensors (as in their files), and their configurations.

Oquab et al. 2023; Darcet et al. 2024. The classifier reads the class token and the mean of the patches. transformers
resizes the positions of models with registers with antialiasing, and of the others without.
"""

from __future__ import annotations

from typing import Any

from vit.config import ViTConfig
from vit.weights.hf_family import QUERY_KEY_VALUE, Family
from vit.weights.layout import MASK_TOKEN, Layout, Rule, Tensors, copied, fused, is_gated, is_plain, positions, split

_PREFIXES = ("", "dinov2.", "dinov2_with_registers.")


def _block_rules(layers: str) -> tuple[Rule, ...]:
    parts = tuple(f"{layers}{part}" for part in QUERY_KEY_VALUE)
    gated = ("blocks.{layer}.feedforward.gate.{kind}", "blocks.{layer}.feedforward.fc1.{kind}")
    fc2 = "blocks.{layer}.feedforward.fc2.{kind}"
    return (
        copied("blocks.{layer}.norm1.{kind}", f"{layers}norm1.{{kind}}"),
        fused("blocks.{layer}.attention.qkv.{kind}", parts),
        copied("blocks.{layer}.attention.output.{kind}", f"{layers}attention.output.dense.{{kind}}"),
        copied("blocks.{layer}.scale1.gamma", f"{layers}layer_scale1.lambda1"),
        copied("blocks.{layer}.norm2.{kind}", f"{layers}norm2.{{kind}}"),
        copied("blocks.{layer}.feedforward.fc1.{kind}", f"{layers}mlp.fc1.{{kind}}", when=is_plain),
        copied(fc2, f"{layers}mlp.fc2.{{kind}}", when=is_plain),
        split(gated, f"{layers}mlp.weights_in.{{kind}}", when=is_gated),
        copied(fc2, f"{layers}mlp.weights_out.{{kind}}", when=is_gated),
        copied("blocks.{layer}.scale2.gamma", f"{layers}layer_scale2.lambda1"),
    )


def _layout(prefix: str) -> Layout:
    embeddings = f"{prefix}embeddings."
    first = (f"{embeddings}cls_token", f"{prefix}encoder.layer.0.layer_scale1.lambda1")
    return Layout(
        name=f"hf-dinov2 ({prefix}…)" if prefix else "hf-dinov2",
        recognizes=lambda tensors: all(name in tensors for name in first),
        rules=(
            copied("class_token", f"{embeddings}cls_token"),
            copied("register_tokens", f"{embeddings}register_tokens"),
            *positions(f"{embeddings}position_embeddings"),
            copied("embedding.projection.{kind}", f"{embeddings}patch_embeddings.projection.{{kind}}"),
            *_block_rules(f"{prefix}encoder.layer.{{layer}}."),
            copied("norm.{kind}", f"{prefix}layernorm.{{kind}}"),
            copied("head.{kind}", "classifier.{kind}"),
        ),
        position_resize="bicubic",
        dropped={rf"{prefix}embeddings\.mask_token": MASK_TOKEN},
    )


def _head_config(tensors: Tensors) -> dict[str, Any]:
    if "classifier.weight" in tensors:
        return {"num_classes": len(tensors["classifier.weight"]), "pooling": "cls_gap"}
    return {"num_classes": 0, "pooling": "cls"}


def _class(name: str, config: ViTConfig) -> str:
    wanted = "cls_gap" if config.num_classes else "cls"
    if config.layer_scale is None:
        raise ValueError("model.layer_scale must not be None")
    if config.mlp_ratio != int(config.mlp_ratio):
        raise ValueError(f"model.mlp_ratio must be a whole number, not {config.mlp_ratio}")
    if config.pooling != wanted:
        raise ValueError(f"model.pooling must be {wanted!r}, not {config.pooling!r}")
    return f"{name}ForImageClassification" if config.num_classes else f"{name}Model"


_KEYS = {"qkv_bias": "qkv_bias", "layerscale_value": "layer_scale"}
_DEFAULTS = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "qkv_bias": True,
    "layerscale_value": 1.0,
    "patch_size": None,
}
DINOV2 = Family(
    "dinov2",
    _head_config,
    lambda config: _class("Dinov2", config),
    ("pooling",),
    {},
    _KEYS,
    _DEFAULTS,
    mlp_by_ratio=True,
    gated="use_swiglu_ffn",
)
DINOV2_REGISTERS = Family(
    "dinov2_with_registers",
    _head_config,
    lambda config: _class("Dinov2WithRegisters", config),
    ("pooling",),
    {},
    _KEYS | {"num_register_tokens": "num_registers"},
    _DEFAULTS | {"num_register_tokens": 4},
    mlp_by_ratio=True,
    gated="use_swiglu_ffn",
)
LAYOUTS = tuple(_layout(prefix) for prefix in _PREFIXES)
