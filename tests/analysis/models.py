"""Small models of every library at random weights."""

from __future__ import annotations

from typing import Any

from torch import nn

from vit.config import ViTConfig
from vit.models import VisionTransformer

SMALL = {"image_size": (16, 24), "patch_size": (8, 8), "width": 16, "depth": 2, "num_heads": 2, "num_classes": 3}


def own(**options: Any) -> VisionTransformer:
    return VisionTransformer(ViTConfig(**{**SMALL, **options})).eval()


def timm_model(name: str, **options: Any) -> nn.Module:
    import timm

    return timm.create_model(name, depth=options.pop("depth", 1), **options)


def hugging(kind: str, suffix: str = "Model", **options: Any) -> nn.Module:
    """`kind` as transformers begins the names: `ViT`, `CLIPVision`."""
    import transformers

    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    given = {**sizes, "image_size": 32, "patch_size": 8, **options}
    settings = getattr(transformers, f"{kind}Config")(**{k: v for k, v in given.items() if v is not None})
    return getattr(transformers, f"{kind}{suffix}")(settings)


def torchvision_model(num_layers: int = 1) -> nn.Module:
    from torchvision.models import VisionTransformer as Theirs

    return Theirs(image_size=32, patch_size=8, num_layers=num_layers, num_heads=2, hidden_dim=24, mlp_dim=8)
