"""open_clip's models with random weights, for `test_open_clip` and the table of layouts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.weights.proof import Row, prove
from vit.config import ViTConfig
from vit.weights.open_clip import OPEN_CLIP

TOWER: dict[str, Any] = {"image_size": 32, "patch_size": 8, "width": 128, "layers": 2, "head_width": 64}
TEXT: dict[str, Any] = {"context_length": 7, "vocab_size": 11, "width": 16, "heads": 2, "layers": 1}
NAMES = {"CLIP of OpenAI (QuickGELU)": True, "CLIP of open_clip (GELU)": False}
"""Model → whether its activation is QuickGELU."""
PROJECTION = 20


def clip(*, quick_gelu: bool, **changes: Any) -> nn.Module:
    """A model of both towers with random parameters; `changes` of the image tower."""
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    torch.manual_seed(0)
    model: nn.Module = CLIP(
        PROJECTION, CLIPVisionCfg(**TOWER | changes), CLIPTextCfg(**TEXT), quick_gelu=quick_gelu
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.dim() < 2 else 0.02))
    return model


def config(*, quick_gelu: bool) -> ViTConfig:
    """Our configuration of the image tower."""
    return ViTConfig(
        image_size=(32, 32),
        patch_size=(8, 8),
        num_classes=PROJECTION,
        width=128,
        depth=2,
        num_heads=2,
        feedforward="quick_gelu" if quick_gelu else "gelu",
        pre_norm=True,
        head_bias=False,
        norm_eps=1e-5,
        init="normal",
    )


def rows() -> Iterator[Row]:
    """One row per activation."""
    for name, quick_gelu in NAMES.items():
        tensors = clip(quick_gelu=quick_gelu).state_dict()
        yield prove(OPEN_CLIP, name, config(quick_gelu=quick_gelu), tensors)
