"""Settings of a run on images that pretrained weights decide: the normalisation of the pixels, and their size."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TypeVar

from vit.config import ImageRun, Preprocessing, check
from vit.hub import OpenedModel
from vit.models import Classifier

Run = TypeVar("Run", bound=ImageRun)
logger = logging.getLogger(__name__)


def following_weights(config: Run, loaded: OpenedModel[Classifier]) -> Run:
    """The settings of the images that pretrained weights decide, where they are not set: mean, standard deviation
    and size.

    Without weights, or where these do not say it, mean and standard deviation are those of every setting that is left
    out.
    """
    stated = loaded.stated_preprocessing or config.data.preprocessing(loaded.model.config.image_size)
    data = replace(config.data, mean=config.data.mean or stated.mean, std=config.data.std or stated.std)
    model = config.model
    if model.pretrained is not None and model.name is None and model.image_size is None:
        model = replace(model, image_size=loaded.model.config.image_size)
    return replace(config, data=data, model=model)


def decided_by_weights(config: ImageRun, loaded: OpenedModel[Classifier]) -> list[str]:
    """The names of the settings that `following_weights` takes from pretrained weights."""
    if config.model.pretrained is None:
        return []
    unset = {"data.mean": config.data.mean is None, "data.std": config.data.std is None}
    left = [name for name, is_left in unset.items() if is_left and loaded.stated_preprocessing is not None]
    return [*left, *(["model.image_size"] if config.model.name is None and config.model.image_size is None else [])]


def notes_of_unknown_normalization(config: ImageRun, loaded: OpenedModel[Classifier]) -> list[str]:
    """A line where neither the settings nor the pretrained weights say how pixels are normalised."""
    name, data = config.model.pretrained, config.data
    if name is None or loaded.stated_preprocessing is not None or (data.mean is not None and data.std is not None):
        return []
    why = loaded.unsupported_preprocessing or f"{name} does not say how its images were normalised"
    return [f"{why}: data.mean and data.std are taken to be 0.5"]


def check_normalization(preprocessing: Preprocessing, loaded: OpenedModel, name: str) -> None:
    """ValueError for weights that were made for another mean, standard deviation or channel order of the pixels; a
    warning where they state these in a way that cannot be read.
    """
    if loaded.stated_preprocessing is None:
        if loaded.unsupported_preprocessing:
            reason = loaded.unsupported_preprocessing
            logger.warning("data.mean and data.std are not compared with those of %s: %s", name, reason)
        return
    for field in ("mean", "std"):
        theirs, ours = getattr(loaded.preprocessing, field), getattr(preprocessing, field)
        same = all(abs(a - b) < 1e-4 for a, b in zip(theirs, ours, strict=True))
        check(same, f"data.{field}", ours, f"{name} was trained with {theirs}; set data.{field} to it")
    check_channel_order(preprocessing, loaded, name)


def check_channel_order(preprocessing: Preprocessing, loaded: OpenedModel, name: str) -> None:
    """ValueError for weights that state another order of the channels: no setting changes that of the images."""
    stated = loaded.stated_preprocessing or preprocessing
    order, our_order = stated.channel_order, preprocessing.channel_order
    if order != our_order:
        raise ValueError(f"{name}: it takes {order} images, and training has {our_order}; choose other weights")
