"""Hugging Face's `config.json` and our `ViTConfig`, in both directions: one `Family` for each `model_type`.

A family is a table of keys, what they mean where they are absent (transformers' own defaults), and what all its models
have in common in our terms. This module knows neither files nor names of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from vit.config import ViTConfig, check
from vit.weights.layout import Tensors

ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu"}
"""Theirs (`hidden_act`) and ours (`feedforward`)."""
COMMON_KEYS = {
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "num_heads",
    "layer_norm_eps": "norm_eps",
}
COMMON_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
}
WITHOUT_ANTIALIASING = "bicubic and antialiased; transformers resizes without antialiasing, so that its values differ"
_FREE = (
    *("stochastic_depth_rate", "dropout_rate", "attention_dropout_rate", "patch_dropout_rate", "init", "backend"),
    *("image_size", "patch_size", "mlp_ratio", "feedforward", "num_classes"),
)
"""Fields that no family fixes: how a model is trained and computed, and what `Family` maps by hand."""


@dataclass(frozen=True)
class Family:
    """Models of one `model_type`. Rates of dropout are the trainer's matter and are not read."""

    model_type: str
    of_heads: Callable[[Tensors], dict[str, Any]]
    """The fields of the head, from the tensors that are there. ValueError for a head that we do not have."""
    architecture: Callable[[ViTConfig], str]
    """The library's class that has the configuration's head. ValueError where it has none."""
    head_fields: tuple[str, ...]
    """What `of_heads` gives, besides `num_classes`."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are the same in all of its models, where they differ from `ViTConfig`'s defaults."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Theirs → ours, besides `COMMON_KEYS`."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What an absent key means, besides `COMMON_DEFAULTS`; None: it must be there."""
    required: Mapping[str, Any] = field(default_factory=dict)
    """Key → the one value that is supported, which is also the default."""
    mlp_by_ratio: bool = False
    """The hidden width is `mlp_ratio` times the width, not `intermediate_size`."""
    square: bool = False
    """Image and patch sizes are single numbers."""
    nested_types: tuple[str, ...] = ()
    """Other `model_type`s, whose `vision_config` is this family's: models of images and text."""

    def read(self, content: Mapping[str, Any], tensors: Tensors, source: str) -> ViTConfig:
        """The architecture that `config.json` says. ValueError, naming the key, for what is not supported."""
        section = self._section(content)
        for key, wanted in ({"num_channels": 3} | dict(self.required)).items():
            found = section.get(key, wanted)
            check(found == wanted, f"model.pretrained: {source}: {key}", found, f"only {wanted!r} is supported")
        missing = [key for key, value in section.items() if value is None and key in self._named()]
        if missing:
            raise ValueError(f"model.pretrained: {source} does not say {', '.join(missing)}")
        values = {ours: section[theirs] for theirs, ours in (COMMON_KEYS | dict(self.keys)).items()}
        return ViTConfig(
            **dict(self.fixed),
            **values,
            image_size=_pair(section["image_size"]),
            patch_size=_pair(section["patch_size"]),
            mlp_ratio=float(section["mlp_ratio"])
            if self.mlp_by_ratio
            else section["intermediate_size"] / values["width"],
            feedforward=self._feedforward(section, source),
            **self.of_heads(tensors),
            init="normal",
        )

    def write(self, config: ViTConfig) -> dict[str, Any]:
        """The `config.json` of a configuration that `objection` finds nothing wrong with."""
        keys = COMMON_KEYS | dict(self.keys)
        gated = config.feedforward == "swiglu"
        acts = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture(config)],
            **{theirs: getattr(config, ours) for theirs, ours in keys.items()},
            **({"num_channels": 3} | dict(self.required)),
            **({"use_swiglu_ffn": gated} if self.mlp_by_ratio else {}),
            "image_size": _single(config.image_size),
            "patch_size": _single(config.patch_size),
            "hidden_act": "gelu" if gated else acts[config.feedforward],
            **_mlp(config, self.mlp_by_ratio),
            **_head(config),
        }

    def objection(self, config: ViTConfig) -> str | None:
        """Why this family cannot express the configuration, naming the field; None: it can."""
        known = {*COMMON_KEYS.values(), *self.keys.values(), *self.head_fields, *_FREE}
        for item in fields(ViTConfig):
            wanted = self.fixed.get(item.name, item.default)
            if item.name not in known and getattr(config, item.name) != wanted:
                return f"model.{item.name} must be {wanted!r}, not {getattr(config, item.name)!r}"
        if config.feedforward == "swiglu" and not self.mlp_by_ratio:
            return "model.feedforward 'swiglu' is not in it"
        for name in ("image_size", "patch_size"):
            if self.square and len(set(getattr(config, name))) > 1:
                return f"model.{name} {getattr(config, name)} is not a square"
        try:
            self.architecture(config)
        except ValueError as error:
            return str(error)
        return None

    def _section(self, content: Mapping[str, Any]) -> dict[str, Any]:
        own = content.get("vision_config", {}) if content["model_type"] in self.nested_types else content
        mlp = {"mlp_ratio": 4} if self.mlp_by_ratio else {"intermediate_size": 3072}
        return COMMON_DEFAULTS | mlp | dict(self.defaults) | dict(own)

    def _named(self) -> set[str]:
        return {*COMMON_KEYS, *self.keys, "image_size", "patch_size", "mlp_ratio", "intermediate_size"}

    def _feedforward(self, section: Mapping[str, Any], source: str) -> Any:
        if section.get("use_swiglu_ffn", False):
            return "swiglu"
        name = section["hidden_act"]
        rule = f"the supported activations are {', '.join(ACTIVATIONS)}"
        check(name in ACTIVATIONS, f"model.pretrained: {source}: hidden_act", name, rule)
        return ACTIVATIONS[name]


def _pair(size: int | list[int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _single(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def _mlp(config: ViTConfig, by_ratio: bool) -> dict[str, Any]:
    if by_ratio:
        return {"mlp_ratio": int(config.mlp_ratio)}
    return {"intermediate_size": round(config.width * config.mlp_ratio)}


def _head(config: ViTConfig) -> dict[str, int]:
    if config.num_classes == 0:
        return {}
    return {"num_labels" if config.head_bias else "projection_dim": config.num_classes}
