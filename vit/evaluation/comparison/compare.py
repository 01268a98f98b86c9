"""`vit compare`: several classifiers on the same images, judged, with what they cost and what sets them apart.

Owns the order of the work; each step is a module beside it. Knows no pictures and no pages (`report` does).
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from vit.config import DataConfig, check
from vit.data.images import Split, fingerprint, open_test, open_training
from vit.data.splits import stratified
from vit.engine import make_accelerator
from vit.evaluation.comparison import provenance
from vit.evaluation.comparison.answers import Answered, Question, answer, on_common_images
from vit.evaluation.comparison.contestants import Contestant, check_sources, load_contestants
from vit.evaluation.comparison.heads import head_columns, random_head_size
from vit.evaluation.comparison.judge import CONVENTIONS, Resampling, Side, judge
from vit.evaluation.comparison.libraries import Head
from vit.evaluation.comparison.robustness import corruption_results
from vit.evaluation.cost import count_parameters, multiply_adds
from vit.evaluation.predictions import Predictions

LEAST_RESAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """Which models, on which images, and how."""

    models: Sequence[str]
    data: DataConfig
    output_dir: Path
    num_images: int | None = None
    """About this many test images, classes balanced; None: all."""
    select: str = "best"
    random_weights: bool = False
    """The libraries' models are built without weights."""
    corruptions: bool = False
    """Also on corrupted images, 76 times as many."""
    device: str = "auto"
    precision: str = "auto"
    resampling: Resampling = field(default_factory=lambda: Resampling(LEAST_RESAMPLES))

    def __post_init__(self) -> None:
        check(len(self.models) >= 2, "model", list(self.models), "give at least two models to compare")
        check(self.num_images is None or self.num_images > 0, "--images", self.num_images, "it must be above 0")
        resamples = self.resampling.num_resamples
        check(resamples >= LEAST_RESAMPLES, "--resamples", resamples, f"it must be at least {LEAST_RESAMPLES}")


@dataclass(frozen=True)
class Comparison:
    """Everything that was found, as JSON can hold it, and the images for the contact sheet."""

    result: dict[str, Any]
    test: Split
    sides: list[Side]


def compare(request: CompareRequest) -> Comparison:
    """Ask every model about the same images and judge the answers.

    ValueError for models and data that do not go together, before anything is asked. Continues from the answers that
    `request.output_dir` holds.
    """
    check_sources(request.models)
    accelerator = make_accelerator(request.device, request.precision)
    if accelerator.num_processes > 1:
        raise ValueError("compare: models are compared by one process; leave out accelerate launch")
    whole = open_test(request.data)
    names = whole.source.class_names
    head = Head(random_head_size(names), request.resampling.seed) if request.random_weights else None
    contestants = load_contestants(request.models, select=request.select, random_head=head)
    columns = [head_columns(contestant, names) for contestant in contestants]
    test = _part(whole, request.num_images)
    question = Question("test", test, whole, request.data, request.output_dir / "answers", accelerator)
    answered = [answer(each, places, question) for each, places in zip(contestants, columns, strict=True)]
    sides = _sides(request, contestants, columns, answered, accelerator)
    result = _described(request, test) | judge(sides, request.resampling)
    result["warnings"] = _warnings(contestants, answered, request.data)
    for model, contestant, each in zip(result["models"], contestants, answered, strict=True):
        model |= _facts(contestant, each)
    if request.corruptions:
        _add_corruptions(result, corruption_results(contestants, columns, question, request.resampling.seed))
    return Comparison(result, test, sides)


def _add_corruptions(result: dict[str, Any], found: dict[str, Any]) -> None:
    result["corruptions"] = found
    for model in result["models"]:
        model["corrupted_top1"] = found["mean_accuracy"][model["name"]]
        model["mce"] = found["mce"][model["name"]]


def _part(split: Split, num_images: int | None) -> Split:
    """About that many images, classes balanced, always the same ones."""
    if num_images is None or num_images >= len(split):
        return split
    chosen = stratified(split.labels, num_images / len(split), seed=0, stream="comparison")
    return Split(split.source, split.indices[chosen])


def _described(request: CompareRequest, test: Split) -> dict[str, Any]:
    return {
        "data": {
            "name": request.data.name,
            "root": request.data.root,
            "images": len(test),
            "classes": len(test.source.class_names),
            "fingerprint": fingerprint(test),
        },
        "resamples": request.resampling.num_resamples,
        "seed": request.resampling.seed,
        "conventions": CONVENTIONS,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("vit", "torch", "torchvision", "timm")},
        },
    }


def _facts(contestant: Contestant, answered: Answered) -> dict[str, Any]:
    """What is said of a model besides its answers."""
    macs = multiply_adds(contestant.model, contestant.preprocessing.image_size)
    return {
        "source": contestant.source,
        "identity": contestant.identity,
        "answers": answered.source,
        "unrestricted_top1": answered.unrestricted_top1,
        "params": count_parameters(contestant.model),
        "gmacs": macs / 1e9,
        "provenance": contestant.provenance.facts(),
    }


_IMAGENETTE = (
    "Most of Imagenette's validation images are ImageNet training images: a model that was trained on ImageNet has "
    "seen them, and its accuracy here is not that on new images."
)


def _warnings(contestants: Sequence[Contestant], answered: Sequence[Answered], data: DataConfig) -> list[str]:
    origins = [contestant.provenance for contestant in contestants]
    found = provenance.warnings([contestant.name for contestant in contestants], origins)
    if data.name == "imagenette" and any("ImageNet" in place for origin in origins for place in origin.data):
        found.append(_IMAGENETTE)
    broken = max(each.predictions.num_broken for each in answered)
    if broken:
        found.append(f"{broken} images could not be read; the models are compared on the others.")
    return found


# ------------------------------------------------------------------ validation, for the temperature


def _sides(
    request: CompareRequest,
    contestants: Sequence[Contestant],
    columns: Sequence[Sequence[int]],
    answered: Sequence[Answered],
    accelerator: Accelerator,
) -> list[Side]:
    """Test answers, with validation answers where there are images that the model was not trained on by us."""
    tests = on_common_images(answered)
    try:
        whole, missing = open_training(request.data)[1], ""
    except ValueError as error:
        whole, missing = None, f"no validation images ({error})"
    sides = []
    for contestant, places, test in zip(contestants, columns, tests, strict=True):
        reason = missing or (_not_held_out(contestant, whole) if whole else "")
        validation: Predictions | None = None
        if whole and not reason:
            part = _part(whole, len(test.labels))
            question = Question("val", part, whole, request.data, request.output_dir / "answers", accelerator)
            validation = answer(contestant, places, question).predictions
        sides.append(Side(contestant.name, test, validation, reason))
    return sides


def _not_held_out(contestant: Contestant, validation: Split) -> str:
    if contestant.validation in (None, fingerprint(validation)):
        return ""
    return "the run held out other images than these, so it may have been trained on them"
