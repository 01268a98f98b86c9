"""The content of Facebook's files: random tensors under their names, of models small enough to run.

For `test_facebook` and `python -m tests.weights.layouts`. The names are those of the repositories'
models (facebookresearch/deit, dino, dinov2, mae).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.weights.proof import Row, prove
from vit.config import ViTConfig
from vit.weights.layout import Layout, strip_prefixes
from vit.weights.layouts import find_layout

WIDTH, DEPTH, HIDDEN = 192, 2, 768
Shapes = dict[str, tuple[int, ...]]


def linear(name: str, outputs: int, inputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name: str, width: int = WIDTH) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def block(name: str, scales: tuple[str, ...] = (), *, gated: bool = False, width: int = WIDTH) -> Shapes:
    hidden = 4 * width
    mlp = linear(f"{name}.mlp.fc1", hidden, width) | linear(f"{name}.mlp.fc2", width, hidden)
    if gated:
        cut = -(-hidden * 2 // 3 // 8) * 8
        mlp = linear(f"{name}.mlp.w12", 2 * cut, width) | linear(f"{name}.mlp.w3", width, cut)
    attention = linear(f"{name}.attn.qkv", 3 * width, width) | linear(f"{name}.attn.proj", width, width)
    scaled: Shapes = {f"{name}.{scale}": (width,) for scale in scales}
    return norm(f"{name}.norm1", width) | attention | scaled | norm(f"{name}.norm2", width) | mlp


def backbone(patch: int, positions: int, scales: tuple[str, ...] = (), *, gated: bool = False) -> Shapes:
    shapes: Shapes = {"cls_token": (1, 1, WIDTH), "pos_embed": (1, positions, WIDTH)}
    shapes |= {"patch_embed.proj.weight": (WIDTH, 3, patch, patch), "patch_embed.proj.bias": (WIDTH,)}
    for layer in range(DEPTH):
        shapes |= block(f"blocks.{layer}", scales, gated=gated)
    return shapes | norm("norm")


def deit3() -> Shapes:
    return backbone(16, 4, ("gamma_1", "gamma_2")) | linear("head", 7, WIDTH)


def dino() -> Shapes:
    """The teacher of a full checkpoint: a backbone with the head for pre-training."""
    head = linear("head.mlp.0", 32, WIDTH) | linear("head.mlp.2", 16, 32)
    head |= {"head.last_layer.weight_g": (24, 1), "head.last_layer.weight_v": (24, 16)}
    return {f"backbone.{name}": shape for name, shape in backbone(16, 5).items()} | head


def dinov2(*, registers: int = 0, gated: bool = False) -> Shapes:
    shapes = backbone(14, 5, ("ls1.gamma", "ls2.gamma"), gated=gated) | {"mask_token": (1, WIDTH)}
    return shapes | ({"register_tokens": (1, registers, WIDTH)} if registers else {})


def dinov3(*, gated: bool = False) -> Shapes:
    """Without a table of positions; the rotation's periods and the mask of the keys' bias are made by `tensors_of`."""
    kept = (name for name in backbone(16, 5, ("ls1.gamma", "ls2.gamma"), gated=gated).items() if name[0] != "pos_embed")
    shapes = dict(kept) | {"mask_token": (1, WIDTH), "storage_tokens": (1, 4, WIDTH), "rope_embed.periods": (16,)}
    shapes |= norm("local_cls_norm")
    for layer in range(DEPTH):
        shapes[f"blocks.{layer}.attn.qkv.bias_mask"] = (3 * WIDTH,)
        if gated:
            name = f"blocks.{layer}.mlp"
            (rows, _), _ = (shapes.pop(f"{name}.w12.{kind}") for kind in ("weight", "bias"))
            shapes |= linear(f"{name}.w1", rows // 2, WIDTH) | linear(f"{name}.w2", rows // 2, WIDTH)
    return shapes


def mae() -> Shapes:
    """The encoder and the decoder that reconstructs pixels."""
    shapes = backbone(16, 5) | {"mask_token": (1, 1, 32), "decoder_pos_embed": (1, 5, 32)}
    shapes |= linear("decoder_embed", 32, WIDTH) | block("decoder_blocks.0", width=32)
    return shapes | norm("decoder_norm", 32) | linear("decoder_pred", 16 * 16 * 3, 32)


FILES: dict[str, tuple[str, Shapes]] = {
    "DeiT-III": ("facebook-deit3", deit3()),
    "DINO, the teacher of a checkpoint": ("facebook-dino", dino()),
    "DINOv2": ("facebook-dinov2", dinov2()),
    "DINOv2 with registers": ("facebook-dinov2", dinov2(registers=4)),
    "DINOv2-g (SwiGLU)": ("facebook-dinov2", dinov2(gated=True)),
    "DINOv3": ("facebook-dinov3", dinov3()),
    "DINOv3-H+ (SwiGLU)": ("facebook-dinov3", dinov3(gated=True)),
    "MAE with its decoder": ("facebook-mae", mae()),
}
"""Name → the layout it is found to be in, and its tensors."""

DEIT3_CONFIG = ViTConfig(
    image_size=(32, 32),
    width=WIDTH,
    depth=DEPTH,
    num_heads=3,
    num_classes=7,
    positions_on_prefix=False,
    layer_scale=1e-6,
    init="normal",
)
"""DeiT-III's: the only file that does not determine it."""


def tensors_of(shapes: Shapes) -> dict[str, Tensor]:
    """Small random numbers everywhere, norms around 1."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in shapes.items():
        spread = 0.5 if len(shape) < 2 else 1.7 / max(torch.Size(shape[1:]).numel(), 1) ** 0.5
        tensors[name] = (torch.rand(shape, generator=generator) * 2 - 1) * spread
        if "norm" in name and name.endswith("weight"):
            tensors[name] += 1
        if name.endswith("periods"):
            tensors[name] = (100.0 ** (torch.arange(16) / 16)).bfloat16().float()
        if name.endswith("qkv.bias_mask"):
            tensors[name] = torch.cat([torch.full((WIDTH,), value) for value in (1.0, 0.0, 1.0)])
            tensors[name.removesuffix("_mask")].chunk(3)[1].zero_()
    return tensors


def checkpoint(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """DINO's checkpoint: student and teacher, the arguments and the epoch."""
    student = {f"module.{name}": tensor + 1 for name, tensor in tensors.items()}
    return {"student": student, "teacher": tensors, "args": Namespace(arch="vit_tiny", lr=0.1), "epoch": 3}


def layout_of(tensors: dict[str, Tensor]) -> Layout:
    layout = find_layout(tensors)
    assert layout is not None
    return layout


def prove_file(name: str) -> Row:
    """Load the file into our model, and compare with timm's model through timm's own reader."""
    tensors = tensors_of(FILES[name][1])
    layout = layout_of(tensors)
    config = layout.config(strip_prefixes(layout, tensors)) or DEIT3_CONFIG
    return prove(layout, name, config, tensors)


def rows() -> Iterator[Row]:
    """One row per file."""
    for name in FILES:
        yield prove_file(name)
