"""Confounders: differences between models besides the architecture, and the warnings about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vit.comparison.metrics import ModelPredictions
from vit.config import Preprocessing
from vit.evaluation.class_maps import NUM_CLASSES
from vit.hub import OpenedModel

_IMAGENETTE = (
    "Most of Imagenette's validation images are ImageNet training images: a model that was trained on ImageNet has "
    "seen them, so its accuracy here is not its accuracy on new images."
)
_SEEN_VALIDATION = (
    "The temperature is fitted on images of train/, and {names} may have been trained on them: its confidence there is "
    "then too high, and the temperature too low."
)


def confounders(model: OpenedModel) -> dict[str, str]:
    """Return the model's column in the table of confounders, by row title."""
    height, width = model.preprocessing.image_size
    origin = model.provenance
    return {
        "weights": origin.weights,
        "computed by": model.implementation,
        "trained on": " → ".join(origin.data) or "nothing",
        "recipe": origin.recipe,
        "distillation": origin.distillation,
        "image size": f"{height}×{width}",
        "preprocessing": describe_preprocessing(model.preprocessing),
    }


def describe_preprocessing(preprocessing: Preprocessing) -> str:
    """Describe crop, filter and normalisation in one line."""
    crop = "squashed" if preprocessing.squash else f"centre {preprocessing.crop_fraction:.3g}"
    filter = preprocessing.interpolation + ("" if preprocessing.antialias else " without antialiasing")
    mean, std = ("/".join(f"{value:.3g}" for value in values) for values in (preprocessing.mean, preprocessing.std))
    order = "" if preprocessing.channel_order == "rgb" else ", blue first"
    return f"{crop}, {filter}{order}, mean {mean}, std {std}"


@dataclass(frozen=True)
class _Rule:
    """A warning if the models differ in what `read` gives."""

    difference: str
    explanation: str
    read: Callable[[OpenedModel], str]
    untrained_too: bool = False
    """Applies to models that were never trained as well."""


_RULES = (
    _Rule(
        "Trained on different data",
        "More or other data can decide the result whatever the architecture.",
        lambda model: confounders(model)["trained on"],
    ),
    _Rule(
        "Different image sizes",
        "More pixels give more accuracy, and cost more.",
        lambda model: confounders(model)["image size"],
        untrained_too=True,
    ),
    _Rule(
        "Different distillation",
        "A teacher brings what it learned from its own data.",
        lambda model: model.provenance.distillation.removesuffix(" stated"),
    ),
    _Rule(
        "Different recipes",
        "A ResNet gains several points from a newer recipe alone.",
        lambda model: model.provenance.recipe,
    ),
    _Rule(
        "Different preprocessing",
        "Each model sees its own crop of the image, as in its training.",
        lambda model: describe_preprocessing(model.preprocessing).split(", mean")[0],
    ),
)


def provenance_warnings(models: Sequence[OpenedModel]) -> list[str]:
    """List one sentence for each confounder in which the models differ."""
    lines = []
    untrained = [model.name for model in models if model.provenance.is_random]
    if untrained:
        lines.append(f"Never trained: {', '.join(untrained)}. Their accuracies say nothing about the architectures.")
    for rule in _RULES:
        compared = [model for model in models if rule.untrained_too or not model.provenance.is_random]
        values = [rule.read(model) for model in compared]
        if len(set(values)) > 1:
            named = "; ".join(f"{model.name}: {value}" for model, value in zip(compared, values, strict=True))
            lines.append(f"{rule.difference} ({named}). {rule.explanation}")
    return lines


def comparison_warnings(
    models: Sequence[OpenedModel], predictions: Sequence[ModelPredictions], data_name: str, num_broken: int
) -> list[str]:
    """List one sentence for each reason why the models are not compared like for like on these images."""
    lines = provenance_warnings(models)
    if data_name == "imagenette" and any("ImageNet" in data for model in models for data in model.provenance.data):
        lines.append(_IMAGENETTE)
    pretrained = [
        model.name
        for model, each in zip(models, predictions, strict=True)
        if each.validation
        and model.num_classes == NUM_CLASSES
        and not model.provenance.is_random
        and model.checkpoint is None
    ]
    if pretrained:
        lines.append(_SEEN_VALIDATION.format(names=", ".join(pretrained)))
    if num_broken:
        lines.append(f"{num_broken} images could not be read; the models are compared on the others.")
    return lines
