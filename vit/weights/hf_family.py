"""Conversion between Hugging Face's `config.json` and `ViTConfig`: one `Family` for each `model_type`.

A family is a table of keys, transformers' defaults for missing keys, and the fields that all its models share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from vit.config import ViTConfig, check
from vit.layers.feedforward import swiglu_width
from vit.weights.layout import Tensors

ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu"}
"""Theirs (`hidden_act`) and ours (`feedforward`)."""
QUERY_KEY_VALUE = (
    "attention.attention.query.{kind}",
    "attention.attention.key.{kind}",
    "attention.attention.value.{kind}",
)
"""Names inside a block of ViT, DeiT, MAE and DINOv2."""
COMMON_KEYS = {
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "num_heads",
}
COMMON_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
}
_FREE = (
    *("stochastic_depth_rate", "dropout_rate", "attention_dropout_rate", "patch_dropout_rate", "init", "backend"),
    *("image_size", "patch_size", "mlp_ratio", "feedforward", "num_classes", "position_resize"),
)
"""Fields that no family fixes: settings of training and computation, those that `Family` converts itself, and what has
no effect on images of the configuration's size."""


def no_more_keys(config: ViTConfig) -> Mapping[str, Any]:  # noqa: ARG001
    return {}


@dataclass(frozen=True)
class Family:
    """Models of one `model_type`. Dropout rates are a setting of training and are not read."""

    model_type: str
    head_config: Callable[[Tensors], dict[str, Any]]
    """Derives the fields of the head from the tensors. ValueError for an unsupported head."""
    architecture: Callable[[ViTConfig], str]
    """The library's class for the configuration's head. ValueError where it has none."""
    head_fields: tuple[str, ...]
    """Fields that `head_config` returns, besides `num_classes`."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields shared by all of its models, where they differ from `ViTConfig`'s defaults."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Theirs → ours, besides `COMMON_KEYS`."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of missing keys, besides `COMMON_DEFAULTS`; None: the key is required."""
    required: Mapping[str, Any] = field(default_factory=dict)
    """Key → the only supported value, which is also the default."""
    mlp_by_ratio: bool = False
    """The hidden width is `mlp_ratio` times the width, not `intermediate_size`."""
    gated: str = ""
    """The key that says that the feed-forward layer is SwiGLU; empty: it never is."""
    gated_act: str = ""
    """The `hidden_act` of such a layer; empty: none is read."""
    epsilon: str = "layer_norm_eps"
    """The key of the norms' epsilon."""
    num_patches: str = ""
    """The key of the number of patches of a square image, which stands in place of `image_size`."""
    square: bool = False
    """Image and patch sizes are single numbers."""
    written: Callable[[ViTConfig], Mapping[str, Any]] = no_more_keys
    """Further keys of `config.json`."""
    nested_types: tuple[str, ...] = ()
    """Other `model_type`s, of models of images and text, whose `vision_config` is of this family."""

    def read(self, content: Mapping[str, Any], tensors: Tensors, source: str) -> ViTConfig:
        """Convert `config.json` to our configuration. ValueError naming an unsupported key."""
        vision = content.get("vision_config") or {} if content["model_type"] in self.nested_types else content
        mlp = {"mlp_ratio": 4} if self.mlp_by_ratio else {"intermediate_size": 3072}
        section = COMMON_DEFAULTS | mlp | dict(self.defaults) | dict(vision)
        for key, wanted in ({"num_channels": 3} | dict(self.required)).items():
            found = section.get(key, wanted)
            check(found == wanted, f"model.pretrained: {source}: {key}", found, f"only {wanted!r} is supported")
        needed = {*self._all_keys, "image_size", "patch_size", "mlp_ratio", "intermediate_size"}
        if self.num_patches:
            section["image_size"] = self._image_size(section, source)
        missing = [key for key, value in section.items() if value is None and key in needed]
        if missing:
            raise ValueError(f"model.pretrained: {source} lacks {', '.join(missing)}")
        sizes = {name: _pair(section[name]) for name in ("image_size", "patch_size")}
        for name, (height, width) in sizes.items():
            rule, is_supported = "only squares are supported", not self.square or height == width
            check(is_supported, f"model.pretrained: {source}: {name}", section[name], rule)
        values = {ours: section[theirs] for theirs, ours in self._all_keys.items()}
        own = values | sizes | self._feedforward(section, source) | self.head_config(tensors)
        return ViTConfig(**dict(self.fixed) | own, init="normal")

    def _image_size(self, section: Mapping[str, Any], source: str) -> list[int]:
        """Height and width of an image of `num_patches`. ValueError unless these make a square."""
        count = section[self.num_patches]
        side = math.isqrt(count)
        rule = "it must be the number of patches of a square image"
        check(side > 0 and side * side == count, f"model.pretrained: {source}: {self.num_patches}", count, rule)
        return [side * step for step in _pair(section["patch_size"])]

    @property
    def _all_keys(self) -> dict[str, str]:
        return COMMON_KEYS | {self.epsilon: "norm_eps"} | dict(self.keys)

    def write(self, config: ViTConfig) -> dict[str, Any]:
        """Convert a configuration to `config.json`; `unsupported_reason` must be None for it."""
        gated = config.feedforward == "swiglu"
        hidden = round(config.width * config.mlp_ratio)
        mlp: dict[str, Any] = {"intermediate_size": swiglu_width(hidden) if gated else hidden}
        if self.mlp_by_ratio:
            mlp = {"mlp_ratio": int(config.mlp_ratio)}
        activations = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
        if self.gated:
            mlp[self.gated] = gated
        gh, gw = config.grid_size
        size = {self.num_patches: gh * gw} if self.num_patches else {"image_size": _single(config.image_size)}
        head = {"num_labels" if config.head_bias else "projection_dim": config.num_classes}
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture(config)],
            **{theirs: getattr(config, ours) for theirs, ours in self._all_keys.items()},
            **({"num_channels": 3} | dict(self.required)),
            **size,
            "patch_size": _single(config.patch_size),
            "hidden_act": self.gated_act or "gelu" if gated else activations[config.feedforward],
            **mlp,
            **self.written(config),
            **(head if config.num_classes else {}),
        }

    def unsupported_reason(self, config: ViTConfig) -> str | None:
        """The reason why this family does not support the configuration, naming the field; None if it does."""
        known = {*self._all_keys.values(), *self.head_fields, *_FREE} - {*self.fixed}
        for item in fields(ViTConfig):
            wanted = self.fixed.get(item.name, item.default)
            if item.name not in known and getattr(config, item.name) != wanted:
                return f"model.{item.name} must be {wanted!r}, not {getattr(config, item.name)!r}"
        if config.feedforward == "swiglu" and not self.gated and "feedforward" not in self.fixed:
            return "model.feedforward 'swiglu' is not supported"
        for name in ("image_size", "patch_size"):
            if self.square and len(set(getattr(config, name))) > 1:
                return f"model.{name} {getattr(config, name)} is not a square"
        try:
            self.architecture(config)
        except ValueError as error:
            return str(error)
        return None

    def _feedforward(self, section: Mapping[str, Any], source: str) -> dict[str, Any]:
        ratio = section["mlp_ratio"] if self.mlp_by_ratio else section["intermediate_size"] / section["hidden_size"]
        name = section["hidden_act"]
        if section.get(self.gated, False) or self.fixed.get("feedforward") == "swiglu":
            rule = f"with {self.gated or 'its gate'} only {self.gated_act!r} is supported"
            check(self.gated_act in ("", name), f"model.pretrained: {source}: hidden_act", name, rule)
            # ours keeps two thirds of the ratio; intermediate_size is what is left
            return {"feedforward": "swiglu", "mlp_ratio": float(ratio if self.mlp_by_ratio else ratio * 1.5)}
        rule = f"the supported activations are {', '.join(ACTIVATIONS)}"
        check(name in ACTIVATIONS, f"model.pretrained: {source}: hidden_act", name, rule)
        return {"feedforward": ACTIVATIONS[name], "mlp_ratio": float(ratio)}


def _pair(size: int | list[int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _single(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)
