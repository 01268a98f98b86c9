"""timm's own Vision Transformers of our architectures: what its constructor is given, and what it does not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vit.config import Preprocessing, ViTConfig
from vit.layers.feedforward import swiglu_width
from vit.libraries import NoCounterpart
from vit.libraries.timm_ratio import exact_ratio

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer as TimmViT

ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu"}
"""Class of a layer → our setting, which is also timm's name for it."""
POOLINGS = {"token": "cls", "avg": "gap", "map": "map"}
_NORM_EPS = 1e-6
"""Epsilon of timm's norms where none is given."""


def timm_forward(config: ViTConfig, tensors: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor]:
    """Build timm's own Vision Transformer with these tensors. ValueError where timm has no such architecture."""
    model = build_timm(config)
    model.load_state_dict(dict(tensors))
    return model.eval()


def build_timm(config: ViTConfig, *, gate_apart: bool = False) -> TimmViT:
    """Build timm's own Vision Transformer; `gate_apart`: SwiGLU's gate in a layer of its own.

    ValueError where timm has no such architecture.
    """
    from timm.layers import GluMlp, LayerNorm, RmsNorm, SwiGLU
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import VisionTransformer

    check_expressible(config)
    options = _plain_arguments(config)
    if config.feedforward == "swiglu":
        hidden = swiglu_width(round(config.width * config.mlp_ratio), config.swiglu_multiple)
        packed = partial(GluMlp, gate_last=False)
        ratio = _ratio((1 if gate_apart else 2) * hidden / config.width, config)
        options |= {"mlp_layer": SwiGLU if gate_apart else packed, "act_layer": nn.SiLU, "mlp_ratio": ratio}
    norm = partial({"layer": LayerNorm, "rms": RmsNorm}[config.norm], eps=config.norm_eps)
    kind = VisionTransformerDistilled if config.distillation_token else VisionTransformer
    return kind(
        norm_layer=norm,
        embed_norm_layer=norm if config.embedding_norm else None,
        drop_path_rate=config.stochastic_depth_rate,
        **options,
    )


def arguments_by_name(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """The function of timm's, and its arguments, that build the model, as a file can hold them.

    NoCounterpart for an architecture that timm builds from layers only, which have no names in a file.
    """
    check_expressible(config)
    name = "deit_base_distilled_patch16_224" if config.distillation_token else "vit_base_patch16_224"
    unnamed = {
        "feedforward": (config.feedforward != "swiglu", ", ".join(ACTIVATIONS.values())),
        "norm": (config.norm == "layer", "layer"),
        "norm_eps": (config.norm_eps == _NORM_EPS, _NORM_EPS),
        "embedding_norm": (not config.embedding_norm, False),
    }
    for field, (met, choices) in unnamed.items():
        if not met:
            rule = f"timm's configuration has no name for model.{field} {getattr(config, field)!r}; it has {choices}"
            raise NoCounterpart(f"--to: {rule}")
    return name, _plain_arguments(config)


def settings_of(preprocessing: Preprocessing) -> dict[str, Any]:
    """timm's `pretrained_cfg` for images that are prepared like this. NoCounterpart for what it cannot say."""
    unsaid = {
        "antialias": (preprocessing.antialias, True),
        "channel_order": (preprocessing.channel_order == "rgb", "rgb"),
        "crop_rounding": (preprocessing.crop_rounding == "even" or preprocessing.squash, "even"),
    }
    for field, (met, choice) in unsaid.items():
        if not met:
            value = getattr(preprocessing, field)
            raise NoCounterpart(f"--to: timm prepares no images with data.{field} {value!r}; it has {choice!r}")
    return {
        "input_size": [3, *preprocessing.image_size],
        "crop_pct": preprocessing.crop_fraction,
        "crop_mode": "squash" if preprocessing.squash else "center",
        "interpolation": preprocessing.interpolation,
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
    }


def _ratio(ratio: float, config: ViTConfig) -> float:
    return exact_ratio(round(config.width * ratio), config.width)


def _plain_arguments(config: ViTConfig) -> dict[str, Any]:
    """Arguments that are numbers, words and lists."""
    prefix = {"class_token": config.class_token, "reg_tokens": config.num_registers}
    return {
        **({} if config.distillation_token else prefix),  # that model always has its own two tokens
        "img_size": list(config.image_size),
        "patch_size": list(config.patch_size),
        "in_chans": config.in_channels,
        "num_classes": config.num_classes,
        "global_pool": {ours: theirs for theirs, ours in POOLINGS.items()}[config.pooling],
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": _ratio(config.mlp_ratio, config),
        "act_layer": config.feedforward,
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "proj_bias": config.proj_bias,
        "init_values": config.layer_scale,
        "pos_embed": "none" if config.positions == "none" else "learn",
        "no_embed_class": config.num_placed_tokens == 0,
        "pre_norm": config.pre_norm,
        "final_norm": config.final_norm != "none",
        "fc_norm": config.final_norm == "pooled",
        "pool_include_prefix": config.pool_prefix,
    }


def check_expressible(config: ViTConfig) -> None:
    """NoCounterpart, naming the setting, for an architecture that it does not have."""
    distilled, learned = config.distillation_token, config.positions == "learned_1d"
    all_or_none = config.positions == "none" or config.num_placed_tokens in (0, config.num_prefix_tokens)
    with_token = "with a distillation token"
    supported = {
        "positions": (
            learned or (config.positions == "none" and not distilled),
            "learned_1d and, without a distillation token, none",
        ),
        "stem": (config.stem == "patch", "patch"),
        "pooling": (config.pooling in POOLINGS.values(), ", ".join(POOLINGS.values())),
        "feedforward": (
            config.feedforward != "swiglu" or config.pooling != "map",
            f"{', '.join(ACTIVATIONS.values())} with model.pooling 'map'",
        ),
        "final_norm": (config.final_norm != "pooled" or not distilled, f"tokens, none {with_token}"),
        "pool_heads": (config.pool_heads is None, "none"),
        "pool_mlp_ratio": (config.pool_mlp_ratio is None, "none"),
        "representation_width": (config.representation_width is None, "none"),
        "head_bias": (config.head_bias, "true"),
        "distillation_head": (config.distillation_head, "true"),
        "num_registers": (not (distilled and config.num_registers), f"0 {with_token}"),
        "positions_on_prefix": (config.positions_on_prefix or not distilled, f"true {with_token}"),
        "positions_on_registers": (all_or_none, "true where model.positions_on_prefix is, and there are registers"),
    }
    for field, (met, choices) in supported.items():
        if not met:
            value = getattr(config, field)
            raise NoCounterpart(f"--to: timm has no model with model.{field} {value!r}; it has {choices}")
