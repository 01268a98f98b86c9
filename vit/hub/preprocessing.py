"""Preprocessing of an opened model: its source's, changed by the user's options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from vit.config import Preprocessing, check
from vit.hub.opened import OpenedModel
from vit.libraries import timm, torchvision
from vit.libraries import transformers as huggingface


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
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    stated = preprocessing or opened.stated_preprocessing
    if mean is not None and std is not None:
        own = size or _image_size(opened.model)
        if stated is None:
            check(own is not None, "image_size", None, f"{opened.source} does not tell its own; give it")
            assert own is not None
            stated = Preprocessing(image_size=own)
        for option, values in (("mean", mean), ("std", std)):
            check(len(values) == 3, option, list(values), "give three numbers, for red, green and blue")
        stated = replace(stated, mean=tuple(mean), std=tuple(std))  # type: ignore[arg-type]
    if size is not None and stated is not None and size != stated.image_size:
        check(min(size) > 0, "image_size", size, "it must be above 0")
        modules = {"timm": timm, "torchvision": torchvision, "transformers": huggingface}
        if opened.implementation in modules:
            modules[opened.implementation].check_image_size(opened.model, size, opened.name)
        stated = replace(stated, image_size=size)
    return replace(opened, stated_preprocessing=stated)


def _image_size(model: nn.Module) -> tuple[int, int] | None:
    size = getattr(getattr(model, "config", None), "image_size", None)
    return (size, size) if isinstance(size, int) else None if size is None else (int(size[0]), int(size[1]))
