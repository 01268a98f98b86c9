"""Accuracy of attention capture: outputs rebuilt from captured vectors, for architectures of four libraries.

Architectures are built by their libraries, but narrow and two layers deep: the proof is about reading queries, keys and
values, which does not depend on depth and width. Weights are random, with none left at zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.unsupported import check_installed
from vit.analysis.capture import AttentionLayer, capture_attention
from vit.hub import create_model
from vit.models import VisionTransformer
from vit.wording import markdown_table

SIDE, SIDE_OF_14 = 96, 98
"""Side of the images in pixels; the second is for patches of 14."""
WIDTH, HEADS, DEPTH = 96, 3, 2

_OURS: dict[str, dict[str, Any]] = {
    "ours: class token": {},
    "ours: registers, QK-norm, RoPE": {"num_registers": 4, "qk_norm": True, "positions": "rope"},
    "ours: relative bias, no class token": {"positions": "relative", "class_token": False, "pooling": "gap"},
}
_TIMM: dict[str, tuple[str, dict[str, Any]]] = {
    "timm: ViT": ("vit_tiny_patch16_224", {}),
    "timm: QK-norm": ("vit_tiny_patch16_224", {"qk_norm": True}),
    "timm: registers, GAP": ("vit_medium_patch16_reg4_gap_256", {}),
    "timm: GAP without class token": ("vit_base_patch16_gap_224", {}),
    "timm: DeiT, distilled": ("deit_tiny_distilled_patch16_224", {}),
    "timm: DINOv2 with registers": ("vit_small_patch14_reg4_dinov2", {"img_size": SIDE_OF_14}),
    "timm: CLIP": ("vit_base_patch32_clip_224", {}),
    "timm: SigLIP": ("vit_base_patch16_siglip_224", {}),
    "timm: RoPE, registers, GAP": ("vit_medium_patch16_rope_reg1_gap_256", {}),
    "timm: EVA-02": ("eva02_tiny_patch14_224", {"img_size": SIDE_OF_14}),
    "timm: DINOv3": ("vit_small_patch16_dinov3", {}),
}
_HF = (
    *("ViT", "DeiT", "Dinov2", "Dinov2WithRegisters", "DINOv3ViT", "CLIPVision", "SiglipVision", "Aimv2Vision"),
    *("ViTMAE", "ViTMSN", "IJepa", "Beit", "Data2VecVision"),
)


def architectures() -> dict[str, Callable[[], nn.Module]]:
    """Map names to functions that build the architectures."""
    return {
        **{name: partial(_ours, options) for name, options in _OURS.items()},
        **{name: partial(_timm, architecture, options) for name, (architecture, options) in _TIMM.items()},
        "torchvision: ViT": _torchvision,
        **{f"transformers: {name}": partial(_hf, name) for name in _HF},
    }


def prove_capture() -> list[dict[str, Any]]:
    """Measure, for each architecture, the largest difference of a rebuilt output relative to the map's contribution.

    ValueError if a difference exceeds rounding, and without transformers.
    """
    check_installed("transformers")
    return [prove(name, build) for name, build in architectures().items()]


def prove(name: str, build: Callable[[], nn.Module]) -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build()
        for parameter in model.parameters():  # scales, biases and tokens that start at 0 or 1 would prove nothing
            parameter.data.add_(torch.randn_like(parameter), alpha=0.05)
        patch_side = next(module.kernel_size[0] for module in model.modules() if isinstance(module, nn.Conv2d))
        side = SIDE if patch_side in (16, 32) else SIDE_OF_14
        images = torch.randn(2, 3, side, side)
    layers: list[tuple[str, int, float]] = []

    def record(layer: AttentionLayer) -> None:
        layers.append((layer.name, layer.query.shape[2], layer.difference))

    with torch.no_grad():
        capture_attention(model, images, record)
    return {
        "architecture": name,
        "first_layer": layers[0][0],
        "layers": len(layers),
        "tokens": layers[0][1],
        "largest_difference": max(difference for _, _, difference in layers),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as Markdown."""
    cells = [
        (
            row["architecture"],
            row["first_layer"],
            str(row["layers"]),
            str(row["tokens"]),
            f"{row['largest_difference']:.1e}",
        )
        for row in rows
    ]
    return markdown_table(("architecture", "first layer", "layers", "tokens", "largest difference"), cells)


def _ours(options: dict[str, Any]) -> nn.Module:
    settings = {"num_classes": 5, "image_size": SIDE, "width": WIDTH, "depth": DEPTH, "num_heads": HEADS, **options}
    model = create_model("vit_tiny_patch16_224", **settings)
    assert isinstance(model, VisionTransformer)
    return model


def _timm(architecture: str, options: dict[str, Any]) -> nn.Module:
    import timm

    sizes = {"embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS, "img_size": SIDE, "num_classes": 5}
    model: nn.Module = timm.create_model(architecture, **(sizes | options))
    return model


def _torchvision() -> nn.Module:
    from torchvision.models import VisionTransformer as TorchvisionViT

    sizes = {"num_layers": DEPTH, "num_heads": 4, "hidden_dim": WIDTH, "mlp_dim": 2 * WIDTH, "num_classes": 5}
    model: nn.Module = TorchvisionViT(image_size=SIDE, patch_size=16, **sizes)
    return model


def _hf(name: str) -> nn.Module:
    import transformers

    settings = getattr(transformers, f"{name}Config")(
        hidden_size=WIDTH,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        image_size=SIDE,
        patch_size=16,
    )
    model: nn.Module = getattr(transformers, f"{name}Model")(settings)
    return model
