"""Model names and their architectures. Names and meanings are timm's where timm has them.

`vit_SIZE_patchP_PIXELS` is any valid combination of size, patch and image size; irregular models are listed. A name
gives defaults, a field of `ModelConfig` overrides one, and a field without effect on the named model is an error.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from dataclasses import fields
from typing import Any

from vit.config import ModelConfig, ResNetConfig, ViTConfig, check, check_arguments, nearest
from vit.config.vit import LEARNED_POSITIONS
from vit.models.resnet import ResNet
from vit.models.resnet_v2 import ResNetV2
from vit.models.size import check_fits_memory, least_parameters
from vit.models.vision_transformer import VisionTransformer

XAVIER_BELOW = 384
"""Models narrower than this default to Xavier initialization: a standard deviation of 0.02 is too small for them."""

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 192, "depth": 12, "num_heads": 3},
    "small": {"width": 384, "depth": 12, "num_heads": 6},
    "medium": {"width": 512, "depth": 12, "num_heads": 8},
    "base": {"width": 768, "depth": 12, "num_heads": 12},
    "large": {"width": 1024, "depth": 24, "num_heads": 16},
    "huge": {"width": 1280, "depth": 32, "num_heads": 16},
}
PATCHES = (8, 14, 16, 32)
PLAIN = "vit"
_GAP = {"pooling": "gap", "class_token": False}
_MEDIUM_GAP = _GAP | {"qkv_bias": False, "layer_scale": 1e-6}
_REGISTERS_GAP = _GAP | {"num_registers": 4, "final_norm": "pooled"}
_DINOV2 = {"layer_scale": 1e-5}
_DINOV2_REGISTERS = _DINOV2 | {"num_registers": 4, "positions_on_prefix": False}
_DEIT3 = {"positions_on_prefix": False, "layer_scale": 1e-6}
_CLIP = {"pre_norm": True, "norm_eps": 1e-5}

IRREGULAR: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    # name: size, patch, pixels, what else differs
    "vit_medium_patch16_gap_240": ("medium", 16, 240, _MEDIUM_GAP),
    "vit_medium_patch16_gap_256": ("medium", 16, 256, _MEDIUM_GAP),
    "vit_medium_patch16_gap_384": ("medium", 16, 384, _MEDIUM_GAP),
    "vit_base_patch16_gap_224": ("base", 16, 224, _GAP | {"num_heads": 16}),
    "vit_huge_patch14_gap_224": ("huge", 14, 224, _GAP),
    "vit_medium_patch16_reg4_gap_256": ("medium", 16, 256, _REGISTERS_GAP | {"layer_scale": 1e-5}),
    "vit_base_patch16_reg4_gap_256": ("base", 16, 256, _REGISTERS_GAP),
    "vit_base_patch32_clip_224": ("base", 32, 224, _CLIP),
    "vit_base_patch16_clip_224": ("base", 16, 224, _CLIP),
    "vit_large_patch14_clip_224": ("large", 14, 224, _CLIP),
    **{f"vit_{size}_patch14_dinov2": (size, 14, 518, _DINOV2) for size in ("small", "base", "large")},
    **{f"vit_{size}_patch14_reg4_dinov2": (size, 14, 518, _DINOV2_REGISTERS) for size in ("small", "base", "large")},
    **{f"deit_{size}_patch16_224": (size, 16, 224, {}) for size in ("tiny", "small", "base")},
    "deit_base_patch16_384": ("base", 16, 384, {}),
    **{
        f"deit_{size}_distilled_patch16_224": (size, 16, 224, {"distillation_token": True})
        for size in ("tiny", "small", "base")
    },
    "deit_base_distilled_patch16_384": ("base", 16, 384, {"distillation_token": True}),
    **{
        f"deit3_{size}_patch{patch}_{pixels}": (size, patch, pixels, _DEIT3)
        for size, patch, sides in (
            *(("small", 16, (224, 384)), ("medium", 16, (224,)), ("base", 16, (224, 384))),
            *(("large", 16, (224, 384)), ("huge", 14, (224,))),
        )
        for pixels in sides
    },
}
_D = {"stem": "deep", "shortcut": "average"}
_CIFAR = {"stem": "cifar", "shortcut": "padding", "width": 16, "image_size": (32, 32)}
RESNETS: dict[str, dict[str, Any]] = {
    **{f"resnet{depth}": {"depth": depth} for depth in (18, 26, 34, 50, 101, 152)},
    **{f"resnet{depth}d": {"depth": depth} | _D for depth in (18, 26, 34, 50, 101, 152)},
    **{f"resnet{depth}_cifar": {"depth": depth, "stem": "cifar"} for depth in (18, 34, 50)},
    **{f"resnet{depth}": {"depth": depth} | _CIFAR for depth in (20, 32, 44, 56, 110)},
    **{f"wide_resnet{depth}_2": {"depth": depth, "group_width": 128} for depth in (50, 101)},
    **{
        f"resnext{depth}_{groups}x{width}d": {"depth": depth, "groups": groups, "group_width": width}
        for depth, groups, width in ((50, 32, 4), (101, 32, 8), (101, 64, 4))
    },
    **{
        f"resnetv2_{depth}x{factor}_bit": {"depth": depth, "width": 64 * factor, "version": 2}
        for depth, factor in ((50, 1), (50, 3), (101, 1), (101, 3), (152, 2), (152, 4))
    },
}
"""He et al.'s CIFAR ResNets are `resnet20` to `resnet110`, with their option A; `resnet18_cifar` and its like are
ImageNet's with a small stem."""
_REGULAR = re.compile(rf"vit_({'|'.join(SIZES)})_patch({'|'.join(map(str, PATCHES))})_(\d+)")
_INITIALS = {size[0]: size for size in SIZES} | {"ti": "tiny"}
_USUAL = {"base", "16", "224"}
"""The one suggested for a name that leaves it open."""
_NOT_ARCHITECTURE = ("name", "pretrained", "pretrained_grid", "new_head", "freeze_backbone", "num_classes")


@check_arguments
def list_models(pattern: str = "*") -> list[str]:
    """Model names like `pattern` (as file names: `*dinov2*`), sorted; regular ViTs are listed at the usual image sizes,
    but accepted at any.
    """
    pixels = {8: (32, 64, 224), 14: (224,), 16: (224, 384), 32: (224, 384)}
    regular = (f"vit_{size}_patch{patch}_{side}" for size in SIZES for patch in PATCHES for side in pixels[patch])
    return sorted(fnmatch.filter({PLAIN, *regular, *IRREGULAR, *RESNETS}, pattern))


def nearest_model(name: str) -> str:
    """Suggest the model with most of the words in `name`: `ViT-B/16` and `vit_base` mean vit_base_patch16_224."""
    name = name[:100]  # it may be anything, and comparing takes time
    models = {model: _words(model) for model in list_models()}
    vocabulary = sorted(set().union(*models.values()))
    close = [difflib.get_close_matches(word, vocabulary, n=1) for word in _words(name) if not word.isdigit()]
    meant = {word for word in _words(name) if word.isdigit()}.union(*close)

    def likeness(model: str) -> tuple[int, int, int, float]:
        words = models[model]
        similarity = difflib.SequenceMatcher(None, name.lower(), model).ratio()
        return len(meant & words), len(_USUAL & words), -len(words - meant), similarity

    best = max(models, key=likeness)
    if meant & models[best]:
        return f"did you mean {best!r}?"
    near = nearest(name, models)
    examples = "such as 'vit_base_patch16_224' or 'resnet50'"
    return near if near.startswith("did you mean") else f"choose one of vit.list_models(), {examples}"


def _words(name: str) -> set[str]:
    """Letters and numbers of a name; the sizes' initials are written out, as in `vit_b_16` and `vits14`."""
    apart = re.sub(r"(?<=vit)(ti|[tsblh])(?=\d|\b|_)", r"_\1", name.lower())
    return {_INITIALS.get(word, word) for word in re.findall(r"[a-z]+|\d+", apart)}


def is_known(name: str) -> bool:
    """True for a name that `resolve` accepts."""
    return name in (PLAIN, *IRREGULAR, *RESNETS) or _REGULAR.fullmatch(name) is not None


def resolve(config: ModelConfig, num_classes: int | None = None) -> ViTConfig | ResNetConfig:
    """The architecture of `config.name`, with the fields of `config` that are set.

    `num_classes` is the data's; `model.num_classes` must equal it where both are given. ValueError for an unknown name,
    a field without effect and values that contradict each other.
    """
    overrides = architecture_overrides(config)
    classes = resolve_num_classes(config.num_classes, num_classes)
    if config.name is None:
        raise ValueError(
            f"model.name: it is missing; choose from {', '.join(list_models()[:6])}, …, or set model.pretrained"
        )
    if config.name in RESNETS:
        return _resolve_resnet(config.name, overrides, classes)
    return _resolve_vit(config.name, overrides, classes)


def architecture_overrides(config: ModelConfig) -> dict[str, Any]:
    """The architectural fields that are set, sizes as (height, width)."""
    overrides = {
        f.name: getattr(config, f.name)
        for f in fields(config)
        if f.name not in _NOT_ARCHITECTURE and getattr(config, f.name) is not None
    }
    return overrides | {
        name: (value, value) if isinstance(value, int) else tuple(value)
        for name, value in overrides.items()
        if name in ("image_size", "patch_size")
    }


def resolve_num_classes(configured: int | None, of_data: int | None) -> dict[str, int]:
    """`num_classes` for a configuration: the configured number or the data's. ValueError where they differ."""
    agree = configured is None or of_data is None or configured == of_data
    check(agree, "model.num_classes", configured, f"the data has {of_data} classes; leave it out to follow the data")
    chosen = of_data if configured is None else configured
    return {} if chosen is None else {"num_classes": chosen}


def _resolve_resnet(name: str, overrides: dict[str, Any], classes: dict[str, int]) -> ResNetConfig:
    known = {f.name for f in fields(ResNetConfig)} - {"depth", "version"}
    for field_name, value in overrides.items():
        rule = f"it has no effect on {name}; a ResNet takes {', '.join(sorted(known))}"
        check(field_name in known, f"model.{field_name}", value, rule)
    return ResNetConfig(**(RESNETS[name] | overrides | classes))


def _resolve_vit(name: str, overrides: dict[str, Any], classes: dict[str, int]) -> ViTConfig:
    settings = _defaults(name) | overrides | classes
    known = {f.name for f in fields(ViTConfig)}
    for field_name, value in overrides.items():
        check(field_name in known, f"model.{field_name}", value, f"it has no effect on {name}, which is no ResNet")
    settings.setdefault("init", "xavier" if settings["width"] < XAVIER_BELOW else "normal")
    resolved = ViTConfig(**settings)
    if "positions_on_prefix" in overrides:
        learned = resolved.positions in LEARNED_POSITIONS
        rule = "it has no effect without learned model.positions and a class token"
        value = overrides["positions_on_prefix"]
        check(learned and resolved.class_token, "model.positions_on_prefix", value, rule)
    for field, met, need in (
        ("position_resize", resolved.resizes_positions, "learned or relative model.positions"),
        ("distillation_head", resolved.distillation_token, "a model.distillation_token"),
        ("head_bias", resolved.num_classes > 0, "a head: model.num_classes above 0"),
    ):
        check(met or field not in overrides, f"model.{field}", overrides.get(field), f"it has no effect without {need}")
    return resolved


def _defaults(name: str) -> dict[str, Any]:
    """The architecture fields of a ViT's name."""
    if name == PLAIN:
        return {"image_size": (32, 32), "patch_size": (4, 4), "width": 192, "depth": 6, "num_heads": 3}
    regular = _REGULAR.fullmatch(name)
    if regular:
        size, patch, pixels = regular[1], int(regular[2]), int(regular[3])
        others: dict[str, Any] = {}
    else:
        if name not in IRREGULAR:  # the nearest name takes time to find
            check(False, "model.name", name, nearest_model(name))
        size, patch, pixels, others = IRREGULAR[name]
    return {"image_size": (pixels, pixels), "patch_size": (patch, patch)} | SIZES[size] | others


def build_model(config: ViTConfig | ResNetConfig) -> VisionTransformer | ResNet:
    """A newly initialized model, on torch's default device.

    ValueError for one that this machine's memory cannot hold.
    """
    check_fits_memory(
        least_parameters(config),
        f"model.width {config.width}, model.depth {config.depth}, {config.num_classes} classes and "
        f"model.image_size {config.image_size}",
    )
    if isinstance(config, ViTConfig):
        return VisionTransformer(config)
    return ResNetV2(config) if config.version == 2 else ResNet(config)
