"""Whole models, their names, and their configurations as plain dictionaries."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vit.config import ResNetConfig, ViTConfig
from vit.models.resnet import ResNet
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import build_model, list_models, resolve

Classifier = VisionTransformer | ResNet

_CONFIGS: dict[str, type[ViTConfig] | type[ResNetConfig]] = {"vit": ViTConfig, "resnet": ResNetConfig}


def config_to_dict(config: ViTConfig | ResNetConfig) -> dict[str, Any]:
    """A configuration as values that JSON can hold."""
    kind = next(name for name, cls in _CONFIGS.items() if isinstance(config, cls))
    return {"kind": kind, **asdict(config)}


def config_from_dict(content: dict[str, Any]) -> ViTConfig | ResNetConfig:
    """The configuration of `config_to_dict`'s result."""
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in content.items()}
    return _CONFIGS[values.pop("kind")](**values)


__all__ = [
    "Classifier",
    "ResNet",
    "VisionTransformer",
    "build_model",
    "config_from_dict",
    "config_to_dict",
    "list_models",
    "resolve",
]
