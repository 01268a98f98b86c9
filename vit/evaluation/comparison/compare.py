"""`vit compare`: several classifiers on the same images, judged, with what they cost and what sets them apart.

Owns the order of the work; each step is a module beside it. Knows no pictures and no pages (`report` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vit.config import DataConfig, check, check_positive
from vit.data.images import Split, open_test
from vit.engine import make_accelerator
from vit.evaluation.comparison.additions import (
    RealLabels,
    add_corruptions,
    add_costs,
    add_real_labels,
    open_real_labels,
)
from vit.evaluation.comparison.answers import Question, answer
from vit.evaluation.comparison.contestants import Contestant, check_sources, is_of_library, load_contestants
from vit.evaluation.comparison.facts import described, facts_of, warnings_of
from vit.evaluation.comparison.heads import head_columns, random_head_size
from vit.evaluation.comparison.judge import Resampling, Side, judge
from vit.evaluation.comparison.libraries import Head
from vit.evaluation.comparison.sides import balanced_part, sides_of

LEAST_RESAMPLES = 10_000
SPEED_BATCH_SIZE = 16


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
    speed: bool = False
    """Also images a second and peak memory."""
    speed_batch_size: int = SPEED_BATCH_SIZE
    real_labels: Path | None = None
    """ReaL's file (Beyer et al. 2020): a second reading of ImageNet's validation images."""
    device: str = "auto"
    precision: str = "auto"
    resampling: Resampling = field(default_factory=lambda: Resampling(LEAST_RESAMPLES))

    def __post_init__(self) -> None:
        check(len(self.models) >= 2, "model", list(self.models), "give at least two models to compare")
        check_positive("--images", self.num_images)
        check_positive("--speed_batch_size", self.speed_batch_size)
        resamples = self.resampling.num_resamples
        check(resamples >= LEAST_RESAMPLES, "--resamples", resamples, f"it must be at least {LEAST_RESAMPLES}")
        timed = self.speed or self.speed_batch_size == SPEED_BATCH_SIZE
        check(timed, "--speed_batch_size", self.speed_batch_size, "it has an effect only with --speed")
        built = not self.random_weights or any(map(is_of_library, self.models))
        check(built, "--random_weights", True, "it has an effect only on models of libraries, and there are none")


@dataclass(frozen=True)
class Comparison:
    """Everything that was found, as JSON can hold it, and the answers and images for the pictures."""

    result: dict[str, Any]
    test: Split
    sides: list[Side]


@dataclass(frozen=True)
class _Opened:
    """Models and images that go together."""

    contestants: list[Contestant]
    columns: list[list[int]]
    question: Question
    real_labels: RealLabels | None


def compare(request: CompareRequest) -> Comparison:
    """Ask every model about the same images and judge the answers.

    ValueError for models and data that do not go together, before anything is asked. Continues from the answers that
    `request.output_dir` holds.
    """
    opened = _open(request)
    contestants, columns, question = opened.contestants, opened.columns, opened.question
    answered = [answer(each, places, question) for each, places in zip(contestants, columns, strict=True)]
    sides = sides_of(contestants, columns, answered, question)
    result = described(request.data, question.split, request.resampling) | judge(sides, request.resampling)
    result["warnings"] = warnings_of(contestants, answered, sides, request.data)
    for model, contestant, each in zip(result["models"], contestants, answered, strict=True):
        model |= facts_of(contestant, each)
    if opened.real_labels is not None:
        add_real_labels(result, answered, opened.real_labels)
    if request.corruptions:
        add_corruptions(result, contestants, columns, question, request.resampling.seed)
    if request.speed:
        add_costs(result, contestants, question.accelerator, request.speed_batch_size)
    return Comparison(result, question.split, sides)


def _open(request: CompareRequest) -> _Opened:
    check_sources(request.models)
    accelerator = make_accelerator(request.device, request.precision)
    if accelerator.num_processes > 1:
        raise ValueError("compare: models are compared by one process; leave out accelerate launch")
    whole = open_test(request.data)
    names = whole.source.class_names
    head = Head(random_head_size(names), request.resampling.seed) if request.random_weights else None
    contestants = load_contestants(request.models, select=request.select, random_head=head)
    columns = [head_columns(contestant, names) for contestant in contestants]
    test = balanced_part(whole, request.num_images)
    real = None if request.real_labels is None else open_real_labels(request.real_labels, contestants, test)
    question = Question("test", test, whole, request.data, request.output_dir / "answers", accelerator)
    return _Opened(contestants, columns, question, real)
