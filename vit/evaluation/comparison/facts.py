"""What is said beside the judgement: on which images, which models, and in which ways it is not like for like."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from vit.config import DataConfig
from vit.data.images import Split, fingerprint
from vit.evaluation.class_maps import CONVENTIONS as CLASS_CONVENTIONS
from vit.evaluation.class_maps import NUM_CLASSES
from vit.evaluation.comparison.answers import Answered
from vit.evaluation.comparison.contestants import Contestant
from vit.evaluation.comparison.judge import CONVENTIONS, Resampling, Side
from vit.evaluation.comparison.provenance import warnings
from vit.evaluation.cost import count_parameters, multiply_adds

_IMAGENETTE = (
    "Most of Imagenette's validation images are ImageNet training images: a model that was trained on ImageNet has "
    "seen them, and its accuracy here is not that on new images."
)
_KNOWN = (
    "The temperature is fitted on images of train/, and {names} may have been trained on them: it is then too sure of "
    "what it knows, and the temperature too low."
)


def described(data: DataConfig, test: Split, resampling: Resampling) -> dict[str, Any]:
    """The images, the resamples, the conventions and the versions."""
    return {
        "data": {
            "name": data.name,
            "root": data.root,
            "images": len(test),
            "classes": len(test.source.class_names),
            "fingerprint": fingerprint(test),
        },
        "resamples": resampling.num_resamples,
        "seed": resampling.seed,
        "conventions": CONVENTIONS | {key: CLASS_CONVENTIONS[key] for key in ("restricted", "unrestricted")},
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("vit", "torch", "torchvision", "timm")},
        },
    }


def facts_of(contestant: Contestant, answered: Answered) -> dict[str, Any]:
    """What is said of a model besides its answers; `gmacs` are 10⁹ multiply-adds an image, attention's included."""
    return {
        "source": contestant.source,
        "identity": contestant.identity,
        "answers": answered.source,
        "unrestricted_top1": answered.unrestricted_top1,
        "params": count_parameters(contestant.model),
        "gmacs": multiply_adds(contestant.model, contestant.preprocessing.image_size) / 1e9,
        "provenance": contestant.provenance.facts(),
    }


def warnings_of(
    contestants: Sequence[Contestant], answered: Sequence[Answered], sides: Sequence[Side], data: DataConfig
) -> list[str]:
    """One sentence for each way in which the models are not compared like for like."""
    origins = [contestant.provenance for contestant in contestants]
    found = warnings([contestant.name for contestant in contestants], origins)
    if data.name == "imagenette" and any("ImageNet" in place for origin in origins for place in origin.data):
        found.append(_IMAGENETTE)
    known = [
        contestant.name
        for contestant, side in zip(contestants, sides, strict=True)
        if side.validation
        and contestant.num_classes == NUM_CLASSES
        and not contestant.provenance.is_random
        and contestant.run is None
    ]
    if known:
        found.append(_KNOWN.format(names=", ".join(known)))
    broken = max(each.predictions.num_broken for each in answered)
    if broken:
        found.append(f"{broken} images could not be read; the models are compared on the others.")
    return found
