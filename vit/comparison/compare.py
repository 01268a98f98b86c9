"""`vit compare`: evaluate several classifiers on the same images and collect every number of the comparison.

The steps are modules of this package, called in order by `compare`; `report` writes the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vit.comparison.confounders import comparison_warnings
from vit.comparison.costs import add_costs
from vit.comparison.leaks import check_unseen
from vit.comparison.metrics import CONVENTIONS, ModelPredictions, comparison_metrics
from vit.comparison.predictions import EvalSet, add_validation, get_predictions
from vit.comparison.real_labels import RealLabels, add_real_labels, open_real_labels
from vit.comparison.request import ComparisonRequest, data_facts, model_facts
from vit.comparison.robustness import add_corruptions
from vit.config import check, check_arguments, check_positive
from vit.data.file_source import check_outside
from vit.data.images import Split, open_test
from vit.data.splits import balanced_subset
from vit.engine import Accelerator, check_one_process, make_accelerator, precision_of
from vit.evaluation.class_maps import CONVENTIONS as CLASS_CONVENTIONS
from vit.evaluation.head_columns import head_columns, random_head_size
from vit.evaluation.seen_images import SeenImages, warnings_of
from vit.hub import OpenedModel
from vit.versions import computing_versions

SPEED_BATCH_SIZE = 16


@dataclass(frozen=True, kw_only=True)
class CompareRequest(ComparisonRequest):
    """The models, the images and the options of a comparison of predictions."""

    num_images: int | None = None
    """About this many test images, classes balanced; None: all."""
    corruptions: bool = False
    """Also evaluate on corrupted images, 76 times as many."""
    speed: bool = False
    """Also measure images per second and peak memory."""
    speed_batch_size: int = SPEED_BATCH_SIZE
    real_labels: Path | None = None
    """ReaL's file (Beyer et al. 2020), for ImageNet's validation images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("--images", self.num_images)
        check_positive("--speed_batch_size", self.speed_batch_size)
        timed = self.speed or self.speed_batch_size == SPEED_BATCH_SIZE
        check(timed, "--speed_batch_size", self.speed_batch_size, "it has an effect only with --speed")


@dataclass(frozen=True)
class Comparison:
    """All numbers, ready for JSON, and the images and predictions that the figures are drawn from."""

    result: dict[str, Any]
    test: Split
    predictions: list[ModelPredictions]


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenedComparison:
    """A request with its models and its images, which go together."""

    request: CompareRequest
    models: Sequence[OpenedModel]
    columns: Sequence[list[int]]
    """For each model, the outputs of its head for the data's classes."""
    full: Split
    test: Split
    """The part of `full` that the models are compared on."""
    real_labels: RealLabels | None
    seen: Sequence[SeenImages]
    """Images of `test` that the runs behind the models have seen."""
    accelerator: Accelerator


@check_arguments
def compare_models(request: CompareRequest) -> Comparison:
    """Evaluate every model on the same images and compare the predictions.

    ValueError, before anything is computed, for models and data that do not go together. A stopped comparison continues
    from the predictions in `request.output_dir`.
    """
    return compare_opened(open_comparison(request))


def open_comparison(request: CompareRequest) -> OpenedComparison:
    """Open models and data, and compute nothing. ValueError where they do not go together."""
    request.check_models()
    accelerator = make_accelerator(request.device, request.precision)
    check_one_process(accelerator, "compare", "models are compared")
    full = open_test(request.data)
    check_outside("--output_dir", request.output_dir, full.source)
    names = full.source.class_names
    models = request.open_models(num_classes=random_head_size(names))
    for model in models:
        model.check_device(accelerator.device)
    columns = [head_columns(model, names, command="vit compare") for model in models]
    test = balanced_subset(full, request.num_images, stream="comparison")
    return OpenedComparison(
        request=request,
        models=models,
        columns=columns,
        full=full,
        test=test,
        real_labels=None if request.real_labels is None else open_real_labels(request.real_labels, models, test),
        seen=check_unseen(models, request.data, test, request.leaky),
        accelerator=accelerator,
    )


def compare_opened(opened: OpenedComparison) -> Comparison:
    """`compare_models` of what `open_comparison` opened."""
    request, models, columns, test = opened.request, opened.models, opened.columns, opened.test
    accelerator, full = opened.accelerator, opened.full
    eval_set = EvalSet("test", test, full, request.data, request.output_dir / "predictions", accelerator)
    evaluated = [get_predictions(model, indices, eval_set) for model, indices in zip(models, columns, strict=True)]
    predictions = add_validation(models, columns, evaluated, eval_set)
    result = {
        "data": data_facts(request.data, test),
        "resamples": request.resampling.num_resamples,
        "seed": request.resampling.seed,
        "conventions": CONVENTIONS | CLASS_CONVENTIONS,
        "versions": computing_versions(),
        "precision": precision_of(accelerator),
        **comparison_metrics(predictions, request.resampling),
    }
    num_broken = len(test) - len(predictions[0].test.labels)  # that one of the models at least could not read
    result["warnings"] = [
        *warnings_of(opened.seen),
        *comparison_warnings(models, predictions, request.data.name, num_broken),
    ]
    result["seen_images"] = [asdict(each) for each in opened.seen]
    for row, model, each in zip(result["models"], models, evaluated, strict=True):
        row |= {
            "source": model.source,
            "identity": model.identity,
            "predictions": each.source,
            "precision": each.precision,
            "unrestricted_top1": each.unrestricted_top1,
            **model_facts(model, opened.seen),
        }
    if opened.real_labels is not None:
        add_real_labels(result, evaluated, opened.real_labels)
    if request.corruptions:
        add_corruptions(result, models, columns, eval_set, request.resampling.seed)
    if request.speed:
        add_costs(result, models, accelerator, request.speed_batch_size)
    return Comparison(result, test, predictions)
