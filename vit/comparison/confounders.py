"""Confounders: differences between models besides the architecture, and the warnings about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vit.comparison.metrics import ModelPredictions
from vit.config import DataConfig, Preprocessing
from vit.data.identity import count_shared
from vit.data.images import Split, open_training
from vit.evaluation.cost import count_parameters, multiply_adds
from vit.hub import OpenedModel
from vit.hub.run_history import data_of_run
from vit.libraries import NOT_STATED
from vit.wording import counted

LARGEST_COST_RATIO = 1.5
"""Costs are called equal up to this factor."""
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
        "trained on": " → ".join(origin.data) or "none",
        "training began from": origin.started_from,
        "recipe": origin.recipe,
        "epochs": origin.epochs,
        "images seen": origin.images_seen,
        "augmentation": origin.augmentation,
        "distillation": origin.distillation,
        "precision of training": origin.precision,
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
    title: str
    """Heading for what may be stated of one model and not of another one."""
    untrained_too: bool = False
    """Applies to models that were never trained as well."""
    same: Callable[[OpenedModel, OpenedModel], bool] | None = None
    """Whether two models are alike in it though `read` tells them apart."""


def _same_images(first: OpenedModel, second: OpenedModel) -> bool:
    """Whether two runs were trained on the same images of the same classes in folders of different names.

    Where the folders are at hand their files are compared, training and validation images together, because names
    decide which are which; else the fingerprints of names and labels that runs store.
    """
    data = [data_of_run(model.state) if model.state is not None else None for model in (first, second)]
    before = [model.provenance.data[:-1] for model in (first, second)]
    if any(each is None or each.name != "imagefolder" for each in data) or before[0] != before[1]:
        return False
    try:
        ours, theirs = (_all_images(each) for each in data if each is not None)
    except (ValueError, OSError):
        stored = [model.state.get("data_fingerprint") for model in (first, second) if model.state is not None]
        return None not in stored and stored[0] == stored[1]
    if len(ours) != len(theirs) or ours.source.class_names != theirs.source.class_names:
        return False
    by_class = [(_class(ours, number), _class(theirs, number)) for number in range(len(ours.source.class_names))]
    return all(len(our) == len(their) == count_shared(our, their) for our, their in by_class)


def _class(split: Split, number: int) -> Split:
    return Split(split.source, split.indices[split.source.labels[split.indices] == number])


def _all_images(config: DataConfig) -> Split:
    train, validation = open_training(config)
    if validation.source is not train.source:  # they have a folder of their own
        return train
    return Split(train.source, torch.cat([train.indices, validation.indices]))


_RULES = (
    _Rule(
        "Trained on different data",
        "More or other data can decide the result whatever the architecture.",
        lambda model: " → ".join(model.provenance.data),
        "training data",
        same=_same_images,
    ),
    _Rule(
        "Different image sizes",
        "More pixels give more accuracy, and cost more.",
        lambda model: confounders(model)["image size"],
        "image size",
        untrained_too=True,
    ),
    _Rule(
        "Different distillation",
        "A teacher brings what it learned from its own data.",
        lambda model: "none" if model.provenance.distillation == NOT_STATED else model.provenance.distillation,
        "distillation",
    ),
    _Rule(
        "Different recipes",
        "A newer recipe alone brings several points.",
        lambda model: model.provenance.recipe,
        "recipe",
    ),
    _Rule(
        "Trained for different numbers of epochs",
        "Longer training alone gives more accuracy.",
        lambda model: model.provenance.epochs,
        "epochs",
    ),
    _Rule(
        "Different augmentation",
        "Augmentation alone changes accuracy, most of all a Vision Transformer's.",
        lambda model: model.provenance.augmentation,
        "augmentation",
    ),
    _Rule(
        "Different precision of training",
        "Lower precision can cost accuracy.",
        lambda model: model.provenance.precision,
        "precision of training",
    ),
    _Rule(
        "Different preprocessing",
        "Each model sees its own crop of the image, as in its training.",
        lambda model: describe_preprocessing(model.preprocessing).split(", mean")[0],
        "preprocessing",
    ),
)


def provenance_warnings(models: Sequence[OpenedModel]) -> list[str]:
    """List one sentence for each confounder in which the models differ, and one for what only some of them state."""
    lines, missing = [], []
    untrained = [model.name for model in models if model.provenance.is_random]
    if untrained:
        lines.append(f"Never trained: {', '.join(untrained)}. Their accuracies say nothing about the architectures.")
    for rule in _RULES:
        compared = [model for model in models if rule.untrained_too or not model.provenance.is_random]
        values = {model.name: rule.read(model) for model in compared}
        stated = {value for value in values.values() if value != NOT_STATED}
        silent = [name for name, value in values.items() if value == NOT_STATED]
        if len(stated) > 1 and not _all_same(rule, [model for model in compared if values[model.name] != NOT_STATED]):
            named = "; ".join(f"{name}: {value}" for name, value in values.items())
            lines.append(f"{rule.difference} ({named}). {rule.explanation}")
        elif stated and silent:
            missing.append(f"{rule.title} of {', '.join(silent)}")
    lines += cost_warnings(models)
    if missing:
        lines.append(f"Not stated, so perhaps different: {'; '.join(missing)}.")
    return lines


def _all_same(rule: _Rule, models: Sequence[OpenedModel]) -> bool:
    """Whether each model is alike with the first one, where a rule can see it."""
    first, *others = models
    alike = rule.same
    return alike is not None and all(rule.read(each) == rule.read(first) or alike(first, each) for each in others)


def cost_warnings(models: Sequence[OpenedModel]) -> list[str]:
    """One sentence for each cost that is far from equal."""
    costs = {
        "multiply-adds per image": [multiply_adds(model.model, model.preprocessing.image_size) for model in models],
        "parameters": [count_parameters(model.model) for model in models],
    }
    lines = []
    for what, numbers in costs.items():
        if max(numbers) > LARGEST_COST_RATIO * min(numbers):
            named = "; ".join(f"{model.name}: {_scaled(n)}" for model, n in zip(models, numbers, strict=True))
            lines.append(f"Different {what} ({named}). A larger model is expected to be the better one.")
    return lines


def _scaled(count: float) -> str:
    """`2.22 G`, `86.6 M`."""
    power, letter = next(((p, unit) for p, unit in ((9, "G"), (6, "M")) if count >= 10**p / 10), (3, "k"))
    return f"{count / 10**power:.3g} {letter}"


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
        if each.validation and not model.provenance.is_random and model.checkpoint is None
    ]
    if pretrained:
        lines.append(_SEEN_VALIDATION.format(names=", ".join(pretrained)))
    if num_broken:
        lines.append(f"{counted(num_broken, 'image')} could not be read; the models are compared on the others.")
    return lines
