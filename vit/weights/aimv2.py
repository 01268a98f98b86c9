"""AIMv2's names in timm, in Apple's own files and in transformers, whose configurations it reads (Fini et al. 2024).

RMSNorm, SwiGLU, no biases in the blocks, a norm between patches and positions. Heads are 128 wide in every published
model, so the tensors determine the architecture.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from vit.config import ViTConfig
from vit.libraries.timm_writing import build_timm, check_expressible
from vit.weights.hf_family import Family
from vit.weights.layout import TEXT_TOWER, Forward, Layout, Rule, Tensors, block_rules, copied, positions, shape_of
from vit.weights.timm import RULES

HEAD_WIDTH = 128
EPSILON = 1e-5
_GATE, _FC1 = "blocks.{layer}.feedforward.gate.{kind}", "blocks.{layer}.feedforward.fc1.{kind}"
_FIXED: dict[str, Any] = {
    "class_token": False,
    "norm": "rms",
    "embedding_norm": True,
    "feedforward": "swiglu",
    "qkv_bias": False,
    "proj_bias": False,
}
"""Fields that all of its models share, besides the pooling."""
_TIMM: tuple[Rule, ...] = (
    *(rule for rule in RULES if rule.ours[0] not in (_GATE, _FC1)),
    copied(_GATE, "blocks.{layer}.mlp.fc1_g.{kind}"),
    copied(_FC1, "blocks.{layer}.mlp.fc1_x.{kind}"),
)
_RENAMED = (
    ("patch_embed.", "preprocessor.patchifier."),
    ("pos_embed", "preprocessor.pos_embed"),
    ("blocks.{layer}.norm1", "trunk.blocks.{layer}.norm_1"),
    ("blocks.{layer}.norm2", "trunk.blocks.{layer}.norm_2"),
    ("blocks.{layer}.mlp.fc1_g", "trunk.blocks.{layer}.mlp.fc1"),
    ("blocks.{layer}.mlp.fc1_x", "trunk.blocks.{layer}.mlp.fc3"),
    ("blocks.", "trunk.blocks."),
    ("norm.", "trunk.post_trunk_norm."),
)
"""Beginning of a name in timm → in Apple's files; the first that fits."""


def is_aimv2(config: ViTConfig) -> bool:
    """Architectures that have timm's names of AIMv2."""
    return config.feedforward == "swiglu" and config.embedding_norm


def _config(tensors: Tensors, embed: str, table: str, block: str) -> ViTConfig | None:
    """The architecture of timm's or Apple's tensors; None without positions and where heads 128 wide do not fit."""
    if table not in tensors:  # a model without positions
        return None
    width, _, ph, pw = shape_of(tensors, f"{embed}proj.weight", 4)
    side = math.isqrt(tensors[table].shape[1])
    if width % HEAD_WIDTH or side**2 != tensors[table].shape[1]:
        return None
    return ViTConfig(
        **_FIXED,
        pooling="gap",
        image_size=(side * ph, side * pw),
        patch_size=(ph, pw),
        width=width,
        depth=sum(name.startswith(block) and name.endswith(".attn.qkv.weight") for name in tensors),
        num_heads=width // HEAD_WIDTH,
        mlp_ratio=tensors[f"{block}0.mlp.fc2.weight"].shape[1] * 1.5 / width,
        num_classes=len(tensors["head.weight"]) if "head.weight" in tensors else 0,
        norm_eps=EPSILON,
        init="normal",
    )


def _timm_forward(config: ViTConfig, tensors: Tensors, *, from_apple: bool = False) -> Forward:
    """timm's own model; `from_apple`: by way of timm's reader of Apple's files."""
    from timm.models.vision_transformer import checkpoint_filter_fn

    model = build_timm(config, gate_apart=True)
    model.load_state_dict(checkpoint_filter_fn(dict(tensors), model) if from_apple else dict(tensors))
    return model.eval()


def _apple_name(theirs: str) -> str:
    return next((new + theirs.removeprefix(old) for old, new in _RENAMED if theirs.startswith(old)), theirs)


TIMM_AIMV2 = Layout(
    name="timm-aimv2",
    recognizes=lambda tensors: "patch_embed.norm.weight" in tensors and "blocks.0.mlp.fc1_g.weight" in tensors,
    rules=_TIMM,
    config=partial(_config, embed="patch_embed.", table="pos_embed", block="blocks."),
    undetermined="the number of heads, which are 128 wide in the published models",
    reference=_timm_forward,
    check_config=check_expressible,
)
APPLE = Layout(
    name="apple-aimv2",
    recognizes=lambda tensors: "preprocessor.patchifier.norm.weight" in tensors and "preprocessor.pos_embed" in tensors,
    rules=tuple(replace(rule, theirs=tuple(_apple_name(name) for name in rule.theirs)) for rule in _TIMM),
    config=partial(_config, embed="preprocessor.patchifier.", table="preprocessor.pos_embed", block="trunk.blocks."),
    undetermined=TIMM_AIMV2.undetermined,
    reference=partial(_timm_forward, from_apple=True),
)

# ------------------------------------------------------------------ Hugging Face


def _hf_layout(prefix: str) -> Layout:
    layer, embeddings = f"{prefix}encoder.layers.{{layer}}.", f"{prefix}embeddings."
    pool = tuple((f"attention_pool.{ours}", f"{prefix}head.{theirs}") for ours, theirs in _POOL)
    return Layout(
        name=f"hf-aimv2 ({prefix}…)" if prefix else "hf-aimv2",
        recognizes=lambda tensors: f"{embeddings}rms_norm.weight" in tensors,
        rules=(
            copied("embedding.projection.{kind}", f"{embeddings}patch_embed.{{kind}}"),
            copied("embedding_norm.{kind}", f"{embeddings}rms_norm.{{kind}}"),
            *positions(f"{embeddings}position_embedding.weight", "n c -> 1 n c"),
            *block_rules(
                layer,
                "rms_norm1.{kind}",
                ("attention.q_proj.{kind}", "attention.k_proj.{kind}", "attention.v_proj.{kind}"),
                *("attention.out_proj.{kind}", "rms_norm2.{kind}", "ffn.up_proj.{kind}", "ffn.down_proj.{kind}"),
            ),
            copied(_GATE, f"{layer}ffn.gate_proj.{{kind}}"),
            copied("norm.{kind}", f"{prefix}rms_norm.{{kind}}"),
            *(copied(ours, theirs) for ours, theirs in pool),
            copied("head.{kind}", "visual_projection.{kind}"),
        ),
        dropped={r"text_model\..*|text_projection\.weight|logit_scale": TEXT_TOWER},
    )


_POOL = (
    ("probe", "cls_token"),
    ("key.{kind}", "k_proj.{kind}"),
    ("value.{kind}", "v_proj.{kind}"),
    ("output.{kind}", "output_proj.{kind}"),
)


def _head_config(tensors: Tensors) -> dict[str, Any]:
    pooling = {"pooling": "query" if any(name.endswith("head.cls_token") for name in tensors) else "gap"}
    if "visual_projection.weight" in tensors:
        return pooling | {"num_classes": len(tensors["visual_projection.weight"]), "head_bias": False}
    return pooling | {"num_classes": 0}


def _class(config: ViTConfig) -> str:
    if config.num_classes:
        raise ValueError("model.num_classes must be 0: it has no head")
    if config.pooling not in ("query", "gap"):
        raise ValueError(f"model.pooling must be 'query' or 'gap', not {config.pooling!r}")
    return "Aimv2VisionModel"


AIMV2 = Family(
    "aimv2_vision_model",
    _head_config,
    _class,
    ("pooling",),
    _FIXED,
    defaults={
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "rms_norm_eps": EPSILON,
        "patch_size": 14,
        "hidden_act": "silu",
    },
    required={"qkv_bias": False, "mlp_bias": False, "is_native": False},
    gated_act="silu",
    epsilon="rms_norm_eps",
    square=True,
    written=lambda config: {"use_head": config.pooling == "query"},
    nested_types=("aimv2",),
)
LAYOUTS = (_hf_layout(""), _hf_layout("vision_model."))
