"""Preprocessing of an opened model: its source's, changed by the user's options."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from torch import nn

from vit.config import Preprocessing, check
from vit.hub.opened import OpenedModel
from vit.libraries import timm, torchvision
from vit.libraries import transformers as huggingface
from vit.models import Classifier, VisionTransformer


def with_preprocessing(
    opened: OpenedModel,
    preprocessing: Preprocessing | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    image_size: int | tuple[int, int] | None,
) -> OpenedModel:
    """The model with its preprocessing as the user changes it."""
    check((mean is None) == (std is None), "std" if std is None else "mean", None, "give mean and std together")
    check(preprocessing is None or mean is None, "mean", mean, "the preprocessing is given, with a mean of its own")
    changes: dict[str, Any] = {}
    if mean is not None and std is not None:
        for option, values in (("mean", mean), ("std", std)):
            check(len(values) == 3, option, list(values), "give three numbers, for red, green and blue")
        changes = {"mean": tuple(mean), "std": tuple(std)}
    before = opened.stated_preprocessing
    stated = preprocessing or before
    if image_size is not None:
        size = (image_size, image_size) if isinstance(image_size, int) else (image_size[0], image_size[1])
        rule = f"{opened.source} does not say how its images are prepared; give mean and std too"
        check(stated is not None or mean is not None, "image_size", size, rule)
        changes["image_size"] = size
    if stated is None and changes:
        own = changes.get("image_size") or _built_image_size(opened.model)
        check(own is not None, "image_size", None, f"{opened.source} does not tell its own; give it")
        changes["image_size"] = own
    if changes:
        stated = Preprocessing(**changes) if stated is None else replace(stated, **changes)
    if stated is not None and (before is None or stated.image_size != before.image_size):
        set_image_size(opened, stated.image_size)
    return replace(opened, stated_preprocessing=stated)


def set_image_size(opened: OpenedModel, size: tuple[int, int]) -> None:
    """Set a library's model to images of that size, where it needs it. ValueError for a size that it does not take."""
    modules = {"timm": timm, "torchvision": torchvision, "transformers": huggingface}
    if opened.implementation in modules:
        modules[opened.implementation].set_image_size(opened.model, size, opened.name)
    elif isinstance(opened.model, Classifier):
        replace(opened.model.config, image_size=size)  # which checks it


def model_of_size(model: nn.Module, image_size: tuple[int, int]) -> nn.Module:
    """The model, or a copy with its positions resized where its images are of another size."""
    if not isinstance(model, VisionTransformer) or model.config.image_size == image_size:
        return model
    resized = deepcopy(model)
    resized.set_image_size(image_size)
    return resized


def _built_image_size(model: nn.Module) -> tuple[int, int] | None:
    size = getattr(getattr(model, "config", None), "image_size", None)
    return (size, size) if isinstance(size, int) else None if size is None else (int(size[0]), int(size[1]))
