"""timm's names for models of EVA's blocks: EVA, EVA-02, DINOv3, RoPE-ViT, the Perception Encoder.

Four ways of naming the same architecture: queries, keys and values in one layer or in three, the gate of SwiGLU in the
first layer or in one of its own, a bias of the keys or none. A rotation of neighbouring channels (2i, 2i + 1), as all
but DINOv3 have it, becomes ours of (i, i + d/2) by reordering the rows of queries and keys. The architecture must be
named: neither heads nor rotation are in the tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from einops import rearrange
from torch import Tensor

from vit.config import ViTConfig
from vit.config.vit import ROTARY_POSITIONS
from vit.libraries.timm_eva import build_eva, check_expressible
from vit.weights.layout import Forward, Layout, Rule, Tensors, copied, is_gated, split
from vit.weights.timm import RULES, is_named_as_eva

_ATTENTION = "blocks.{layer}.attention.qkv."
_QKV_WEIGHT, _QKV_BIAS = f"{_ATTENTION}weight", f"{_ATTENTION}bias"
_GATED = ("blocks.{layer}.feedforward.gate.{kind}", "blocks.{layer}.feedforward.fc1.{kind}")


def _reordered(part: Tensor, config: ViTConfig, pattern: str) -> Tensor:
    """Rows of the queries or of the keys, where rotated channels are neighbours there and half a head apart here."""
    if config.positions not in ROTARY_POSITIONS or config.rope_coordinates == "centred":
        return part
    return rearrange(part, pattern, h=config.num_heads, pair=2)


_there_to_here = partial(_reordered, pattern="(h j pair) ... -> (h pair j) ...")
_here_to_there = partial(_reordered, pattern="(h pair j) ... -> (h j pair) ...")


def to_fused(pieces: list[Tensor], config: ViTConfig) -> list[Tensor]:
    """Queries, keys and values, in one tensor or three, as one; of biases, those of the keys may be absent: zeros."""
    if len(pieces) == 2:
        query, value = pieces
        key = torch.zeros_like(query)
    else:
        query, key, value = pieces if len(pieces) == 3 else pieces[0].chunk(3)
    return [torch.cat((_there_to_here(query, config), _there_to_here(key, config), value))]


def from_fused(pieces: list[Tensor], config: ViTConfig, count: int) -> list[Tensor]:
    """The inverse of `to_fused`, into `count` tensors. ValueError where two cannot hold a bias of the keys."""
    query, key, value = pieces[0].chunk(3)
    query, key = _here_to_there(query, config).contiguous(), _here_to_there(key, config).contiguous()
    if count == 2:
        if key.any():
            raise ValueError("the keys have a bias, which is not 0; the library's model has none")
        return [query, value.contiguous()]
    return [query, key, value.contiguous()] if count == 3 else [torch.cat((query, key, value))]


def _qkv(ours: str, *theirs: str) -> Rule:
    names = tuple(f"blocks.{{layer}}.attn.{name}" for name in theirs)
    return Rule((ours,), names, to_ours=to_fused, to_theirs=partial(from_fused, count=len(names)))


FUSED = (_qkv(_QKV_WEIGHT, "qkv.weight"), _qkv(_QKV_BIAS, "q_bias", "v_bias"))
_APART = (
    _qkv(_QKV_WEIGHT, "q_proj.weight", "k_proj.weight", "v_proj.weight"),
    _qkv(_QKV_BIAS, "q_proj.bias", "v_proj.bias"),
)
_WITH_KEY_BIAS = (_qkv(_QKV_WEIGHT, "qkv.weight"), _qkv(_QKV_BIAS, "qkv.bias"))
_PACKED_GATE = (split(_GATED, "blocks.{layer}.mlp.fc1.{kind}", when=is_gated),)
_GATE_APART = (
    copied(_GATED[0], "blocks.{layer}.mlp.fc1_g.{kind}", when=is_gated),
    copied(_GATED[1], "blocks.{layer}.mlp.fc1_x.{kind}", when=is_gated),
)
_OWN = (
    copied("blocks.{layer}.attention.output_norm.{kind}", "blocks.{layer}.attn.norm.{kind}"),
    copied("blocks.{layer}.feedforward.norm.{kind}", "blocks.{layer}.mlp.norm.{kind}", when=is_gated),
    copied("positions.rotary.frequencies", "rope.freqs"),
)


def shared_rules() -> tuple[Rule, ...]:
    """timm's rules for what EVA's blocks have in common with its other Vision Transformers."""
    scales = {f"blocks.{{layer}}.ls{number}.gamma": f"blocks.{{layer}}.gamma_{number}" for number in (1, 2)}
    others = (rule for rule in RULES if not rule.ours[0].startswith((_ATTENTION, *_GATED[:1])))
    others = (rule for rule in others if not (rule.ours[0] == _GATED[1] and rule.when is is_gated))
    return tuple(replace(rule, theirs=tuple(scales.get(name, name) for name in rule.theirs)) for rule in others)


def _has(tensors: Tensors, name: str) -> bool:
    return f"blocks.0.{name}" in tensors


def _layout(
    name: str,
    rules: tuple[Rule, ...],
    recognizes: Callable[[Tensors], bool],
    examples: str,
    *,
    attention: str = "eva",
    fused: bool = True,
    gate_apart: bool = False,
) -> Layout:
    def forward(config: ViTConfig, tensors: Tensors) -> Forward:
        model = build_eva(config, attention=attention, fused=fused, gate_apart=gate_apart)
        model.load_state_dict(dict(tensors))
        return model.eval()

    return Layout(
        name=name,
        recognizes=lambda tensors: "patch_embed.proj.weight" in tensors and recognizes(tensors),
        fits=is_named_as_eva,
        rules=(*shared_rules(), *rules, *_OWN),
        undetermined=f"heads and rotation; name it, as {examples}",
        reference=forward,
        check_config=check_expressible,
    )


EVA_02 = _layout(
    "timm-eva02",
    (*_APART, *_GATE_APART),
    lambda tensors: _has(tensors, "attn.q_proj.weight"),
    "eva02_base_patch14_224",
    fused=False,
    gate_apart=True,
)
ROPE_VIT = _layout(
    "timm-rope",
    (*_WITH_KEY_BIAS, *_PACKED_GATE),
    lambda tensors: _has(tensors, "attn.qkv.bias"),
    "vit_base_patch16_rope_224 or, with rope.freqs, vit_base_patch16_rope_mixed_224",
    attention="rope",
)
DINOV3 = _layout(
    "timm-dinov3",
    (*FUSED, *_GATE_APART),
    lambda tensors: _has(tensors, "mlp.fc1_g.weight"),
    "vit_small_plus_patch16_dinov3",
    gate_apart=True,
)
EVA = _layout(
    "timm-eva",
    (*FUSED, *_PACKED_GATE),
    lambda tensors: _has(tensors, "attn.qkv.weight"),
    "vit_base_patch16_dinov3 or eva02_tiny_patch14_224",
)
LAYOUTS = (EVA_02, ROPE_VIT, DINOV3, EVA)
"""In the order of recognition: the last has the fewest names of its own."""


def layout_to_write(config: ViTConfig, tensors: Tensors) -> Layout:
    """The way of naming that has a place for our `tensors`, as timm's own models of the architecture have it."""
    biases = [bias for name, bias in tensors.items() if name.endswith("attention.qkv.bias")]
    if any(bias.chunk(3)[1].any() for bias in biases):
        return ROPE_VIT
    gated_dinov3 = config.rope_coordinates == "centred" and config.feedforward == "swiglu"
    return DINOV3 if gated_dinov3 else EVA
