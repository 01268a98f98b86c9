"""Hugging Face's DINOv3 (Vision Transformers): names of tensors (as in their files), and their configurations.

Siméoni et al. 2025. Nothing is resized, for positions are rotary; keys have no bias. transformers has no class with a
head.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from vit.config import ViTConfig
from vit.weights.eva import from_fused, to_fused
from vit.weights.hf_family import Family
from vit.weights.layout import MASK_TOKEN, Layout, Rule, Tensors, copied, fused, is_gated

_LAYER = "layer.{layer}."
_ATTENTION = f"{_LAYER}attention."
_MLP = f"{_LAYER}mlp."
RULES = (
    copied("class_token", "embeddings.cls_token"),
    copied("register_tokens", "embeddings.register_tokens"),
    copied("embedding.projection.{kind}", "embeddings.patch_embeddings.{kind}"),
    copied("blocks.{layer}.norm1.{kind}", f"{_LAYER}norm1.{{kind}}"),
    fused("blocks.{layer}.attention.qkv.weight", tuple(f"{_ATTENTION}{part}_proj.weight" for part in "qkv")),
    Rule(
        ("blocks.{layer}.attention.qkv.bias",),
        (f"{_ATTENTION}q_proj.bias", f"{_ATTENTION}v_proj.bias"),
        to_ours=to_fused,
        to_theirs=partial(from_fused, count=2),
    ),
    copied("blocks.{layer}.attention.output.{kind}", f"{_ATTENTION}o_proj.{{kind}}"),
    copied("blocks.{layer}.scale1.gamma", f"{_LAYER}layer_scale1.lambda1"),
    copied("blocks.{layer}.norm2.{kind}", f"{_LAYER}norm2.{{kind}}"),
    copied("blocks.{layer}.feedforward.gate.{kind}", f"{_MLP}gate_proj.{{kind}}", when=is_gated),
    copied("blocks.{layer}.feedforward.fc1.{kind}", f"{_MLP}up_proj.{{kind}}"),
    copied("blocks.{layer}.feedforward.fc2.{kind}", f"{_MLP}down_proj.{{kind}}"),
    copied("blocks.{layer}.scale2.gamma", f"{_LAYER}layer_scale2.lambda1"),
    copied("norm.{kind}", "norm.{kind}"),
)


def _head_config(tensors: Tensors) -> dict[str, Any]:  # noqa: ARG001
    return {"num_classes": 0}


def _class(config: ViTConfig) -> str:
    if config.layer_scale is None:
        raise ValueError("model.layer_scale must not be None")
    if config.num_classes:
        raise ValueError("model.num_classes must be 0: it has no head")
    return "DINOv3ViTModel"


DINOV3 = Family(
    "dinov3_vit",
    _head_config,
    _class,
    (),
    {"positions": "rope", "rope_coordinates": "centred"},
    {
        "rope_theta": "rope_temperature",
        "query_bias": "qkv_bias",
        "value_bias": "qkv_bias",
        "layerscale_value": "layer_scale",
        "num_register_tokens": "num_registers",
    },
    {
        "hidden_size": 384,
        "num_attention_heads": 6,
        "intermediate_size": 1536,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "rope_theta": 100.0,
        "query_bias": True,
        "value_bias": True,
        "layerscale_value": 1.0,
        "num_register_tokens": 0,
    },
    required={"key_bias": False, "proj_bias": True, "mlp_bias": True},
    gated="use_gated_mlp",
    gated_act="silu",
)
LAYOUTS = (
    Layout(
        name="hf-dinov3",
        recognizes=lambda tensors: "layer.0.layer_scale1.lambda1" in tensors and "embeddings.cls_token" in tensors,
        rules=RULES,
        dropped={r"embeddings\.mask_token": MASK_TOKEN},
    ),
)
