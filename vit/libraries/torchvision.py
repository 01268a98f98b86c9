"""torchvision: names of models and weights, preprocessing, its own models, and their counterparts in this package."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch import nn

from vit.config import Preprocessing, ViTConfig, check, nearest
from vit.libraries import NEVER_TRAINED, LibraryModel, NoCounterpart, Provenance, download_error

RESNETS = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "wide_resnet101_2"),
    *("resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d"),
)
"""ResNets with the same names, and names of tensors, in this package."""
HEADS_BY_WIDTH = {768: 12, 1024: 16, 1280: 16}
"""Width → heads of its Vision Transformers."""
NAMES = ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14")
PLAIN = (
    *("pooling", "class_token", "distillation_token", "num_registers", "positions", "positions_on_prefix"),
    *("feedforward", "qk_norm", "qkv_bias", "pre_norm", "final_norm", "head_bias", "layer_scale", "stem"),
    *("proj_bias", "norm", "embedding_norm"),
)
"""Fields of `ViTConfig` that have their defaults in every Vision Transformer of torchvision."""


def find_weights(name: str) -> tuple[str, Any]:
    """The architecture and weights entry of `vit_b_16` (default weights) or `vit_b_16.IMAGENET1K_SWAG_E2E_V1`.

    ValueError for a name that torchvision does not have.
    """
    from torchvision import models

    architecture, _, wanted = name.partition(".")
    known = models.list_models(module=models)
    if architecture not in known:
        hint = nearest(architecture, known)
        raise ValueError(f"model.pretrained: torchvision has no classifier {architecture!r}; {hint}")
    entries = models.get_model_weights(architecture)
    choices = [entry.name for entry in entries]
    if wanted and wanted not in choices:
        hint = nearest(wanted, choices)
        raise ValueError(f"model.pretrained: torchvision's {architecture} has no weights {wanted!r}; {hint}")
    return architecture, entries[wanted] if wanted else entries.DEFAULT


def is_ours(architecture: str) -> bool:
    """True if this package computes the architecture too."""
    return architecture in (*RESNETS, *NAMES)


def preprocessing_of(transform: Any) -> Preprocessing:
    """Convert torchvision's `ImageClassification`."""
    (crop,), (resized,) = transform.crop_size, transform.resize_size
    fraction = crop / resized
    if math.floor(crop / fraction) != resized:
        fraction = math.nextafter(fraction, 0)
    return Preprocessing(
        image_size=(crop, crop),
        crop_fraction=fraction,
        interpolation=transform.interpolation.value,
        antialias=transform.antialias is not False,
        mean=tuple(transform.mean),
        std=tuple(transform.std),
    )


def provenance_of(entry: Any) -> Provenance:
    """The training data and recipe of a weights entry, from its name."""
    data = ("Instagram (3.6 B, SWAG)", "ImageNet-1k") if "SWAG" in entry.name else ("ImageNet-1k",)
    return Provenance("torchvision", data, f"torchvision {entry.name}")


def build(name: str, *, pretrained: bool, num_classes: int | None = None) -> LibraryModel:
    """torchvision's own model. `num_classes`: for random weights; None: as many as the trained model has.

    ValueError for an unknown name and for weights that cannot be downloaded.
    """
    from torchvision import models

    architecture, entry = find_weights(name)
    names = list(entry.meta["categories"])
    preprocessing = preprocessing_of(entry.transforms())
    if not pretrained:
        classes = len(names) if num_classes is None else num_classes
        model = models.get_model(architecture, weights=None, num_classes=classes)
        return LibraryModel(model, preprocessing, [], classes, NEVER_TRAINED, library="torchvision")
    try:
        model = models.get_model(architecture, weights=entry)
    except (OSError, RuntimeError) as error:
        raise download_error(f"torchvision's weights {name!r}", error) from error
    return LibraryModel(model, preprocessing, names, len(names), provenance_of(entry), library="torchvision")


def set_image_size(model: nn.Module, size: tuple[int, int], name: str) -> None:
    """ValueError for another size than a Vision Transformer of torchvision was built for: it cannot be changed."""
    own = getattr(model, "image_size", None)
    fits = own is None or size == (own, own)
    check(fits, "image_size", size, f"torchvision's {name} takes images of {own} pixels only")


def build_torchvision(config: ViTConfig) -> nn.Module:
    """Build torchvision's own Vision Transformer. ValueError for an architecture that it does not have."""
    from torchvision.models import VisionTransformer

    check_expressible(config)
    return VisionTransformer(
        image_size=config.image_size[0],
        patch_size=config.patch_size[0],
        num_layers=config.depth,
        num_heads=config.num_heads,
        hidden_dim=config.width,
        mlp_dim=round(config.width * config.mlp_ratio),
        num_classes=config.num_classes,
        representation_size=config.representation_width,
        norm_layer=partial(nn.LayerNorm, eps=config.norm_eps),
    )


def check_expressible(config: ViTConfig) -> None:
    """NoCounterpart, naming the setting, for an architecture that it does not have."""
    plain = ViTConfig()
    for field in PLAIN:
        if getattr(config, field) != getattr(plain, field):
            raise NoCounterpart(f"--to: torchvision has no model with model.{field} {getattr(config, field)!r}")
    for field in ("image_size", "patch_size"):
        height, width = getattr(config, field)
        if height != width:
            raise NoCounterpart(f"--to: torchvision has no model with model.{field} {(height, width)}: not a square")
    if config.num_classes == 0:
        raise NoCounterpart("--to: torchvision has no model with model.num_classes 0")
