"""A trained classifier on a test set: the same `predict` for every model, its own preprocessing, its results stored."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from accelerate import Accelerator

from vit.config import ClassificationRun, DataConfig, Preprocessing, check
from vit.data.images import Split, fingerprint, open_test, open_training
from vit.data.loading import EvalLoader
from vit.engine import gather_uneven, make_accelerator
from vit.evaluation.checkpoint import Request
from vit.evaluation.evaluate import predict
from vit.evaluation.metrics import CONVENTIONS, classification_metrics, confusion_matrix, per_class_accuracy
from vit.evaluation.predictions import Predictions
from vit.evaluation.transfer import CONVENTIONS as TRANSFER_CONVENTIONS
from vit.evaluation.transfer import transfer_metrics
from vit.figures.confusion_matrix import confusion_matrix as draw_confusion_matrix
from vit.figures.style import save_figure
from vit.hub import LoadedModel, load_run
from vit.models import Classifier
from vit.runs import write_json
from vit.settings import check_overrides, override

_SETTINGS = ("data", "device", "train.precision")
_REMEDIES = {"model.image_size": "to evaluate at another size give --image_size"}
_SPEED = "over all processes, decoding and preprocessing included, from the first image to the last"


def evaluate_classifier(request: Request, trained: ClassificationRun) -> dict[str, Any]:
    """Evaluate on the test set, store predictions, metrics and confusion matrix, and return the metrics.

    They are those of `classification_metrics`, `images_per_second` (decoding included), `per_class_accuracy` by class
    name (None for a class without images), and `transfer_metrics` where asked for. ValueError when the data's classes
    are not the checkpoint's, or other preprocessing than the stored is asked for.
    """
    loaded, state = load_run(request.checkpoint, request.select, request.weights)
    check_overrides(trained, request.overrides, _SETTINGS, _REMEDIES)
    config = override(for_other_data(trained, request.overrides), request.overrides)
    assert isinstance(config, ClassificationRun)
    preprocessing = _enforced(config, loaded, request.image_size)
    accelerator = make_accelerator(config.device, config.train.precision)
    if request.transfer and accelerator.num_processes > 1:
        raise ValueError("--transfer: the frozen features are judged by one process; leave out accelerate launch")
    split = open_test(config.data)
    assert loaded.class_names is not None
    check_classes(split.source.class_names, loaded.class_names)
    model = accelerator.prepare(loaded.model)
    loader = EvalLoader(
        split,
        preprocessing,
        config.data,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
    )
    started = time.perf_counter()
    predictions = _predict(accelerator, model, loader, loaded.class_names)
    seconds = time.perf_counter() - started
    predictions = replace(predictions, fingerprint=fingerprint(split))
    metrics: dict[str, Any] = dict(classification_metrics(predictions))
    metrics["images_per_second"] = round(len(predictions.labels) / max(seconds, 1e-9), 1)
    metrics["per_class_accuracy"] = _by_class(predictions)
    if request.transfer:
        metrics |= _transfer(accelerator, loaded.model, split, preprocessing, config)
    if accelerator.is_main_process:
        _store(request, state, config.data, predictions, metrics)
    accelerator.wait_for_everyone()
    return metrics


def for_other_data(trained: ClassificationRun, overrides: Sequence[str]) -> ClassificationRun:
    """Where another data set is named, what belonged to the one that was trained on is forgotten."""
    if not any(word.split("=")[0] == "--data.name" for word in overrides):
        return trained
    default = DataConfig()
    bound = ("test_folder", "download", "fake_images", "fake_classes")
    data = replace(trained.data, **{name: getattr(default, name) for name in bound})
    return replace(trained, data=data)


def check_classes(of_data: list[str], of_checkpoint: list[str]) -> None:
    """ValueError unless the data has the checkpoint's classes, in its order."""
    check(
        len(of_data) == len(of_checkpoint),
        "data.root",
        f"{len(of_data)} classes",
        f"the checkpoint was trained on {len(of_checkpoint)}",
    )
    for index, (theirs, ours) in enumerate(zip(of_data, of_checkpoint, strict=True)):
        check(theirs == ours, "data.root", theirs, f"class {index} of the checkpoint is {ours!r}")


def _enforced(config: ClassificationRun, loaded: LoadedModel, image_size: int | None) -> Preprocessing:
    """The stored preprocessing. Another one may not slip in by way of the data section."""
    stored = loaded.preprocessing
    assert stored is not None
    asked = config.data.preprocessing(stored.image_size)
    for name in ("crop_fraction", "interpolation", "antialias", "mean", "std"):
        theirs, ours = getattr(stored, name), getattr(asked, name)
        check(
            theirs == ours,
            f"data.{name}",
            ours,
            f"the checkpoint was trained with {theirs}, which is enforced",
        )
    return stored if image_size is None else replace(stored, image_size=(image_size, image_size))


def _predict(accelerator: Accelerator, model: Classifier, loader: EvalLoader, class_names: list[str]) -> Predictions:
    return predict(
        model,
        loader,
        class_names,
        device=accelerator.device,
        gather=lambda values: gather_uneven(accelerator, values),
    )


def _by_class(predictions: Predictions) -> dict[str, float | None]:
    values = per_class_accuracy(predictions).tolist()
    return {
        name: None if math.isnan(value) else value for name, value in zip(predictions.class_names, values, strict=True)
    }


def _transfer(
    accelerator: Accelerator, model: Classifier, test: Split, preprocessing: Preprocessing, config: ClassificationRun
) -> dict[str, float]:
    train, _ = open_training(config.data)
    loaders = [EvalLoader(split, preprocessing, config.data) for split in (train, test)]
    return transfer_metrics(model, *loaders, device=accelerator.device)


def _store(
    request: Request,
    state: dict[str, Any],
    data: DataConfig,
    predictions: Predictions,
    metrics: dict[str, Any],
) -> None:
    folder = request.folder
    folder.mkdir(parents=True, exist_ok=True)
    size = f"_{request.image_size}px" if request.image_size else ""
    stem = f"{data.name.replace(':', '_')}_{request.select}_{request.weights}{size}"
    predictions.save(folder / f"{stem}.npz")
    counts = confusion_matrix(predictions)
    record = {
        "checkpoint": str(request.checkpoint),
        "step": state["progress"]["step"],
        **metrics,
        "conventions": CONVENTIONS | {"images_per_second": _SPEED} | (TRANSFER_CONVENTIONS if request.transfer else {}),
    }
    write_json(folder / f"{stem}.json", record)
    numbers = {
        "counts": counts.tolist(),
        "class_names": predictions.class_names,
        "conventions": "rows: true class; columns: predicted class",
    }
    figure = draw_confusion_matrix(counts, predictions.class_names)
    save_figure(figure, folder / f"{stem}_confusion_matrix.png", numbers)
