"""`vit eval` of a classifier's run: a test set with the run's own preprocessing, its results stored."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vit.config import DataConfig, Preprocessing, check
from vit.data.file_source import FileSource, check_outside
from vit.data.identity import sizes_digest
from vit.data.images import Split, fingerprint, open_test, place_name
from vit.data.loading import EvalLoader
from vit.engine import check_one_process, gather_uneven, make_accelerator, precision_of, rank_and_world_size
from vit.evaluation.evaluate import predict_all
from vit.evaluation.metrics import CONVENTIONS, classification_metrics, confusion_matrix, per_class_accuracy
from vit.evaluation.predictions import Predictions, write_table
from vit.evaluation.transfer_evaluation import CONVENTIONS as TRANSFER_CONVENTIONS
from vit.evaluation.transfer_evaluation import evaluate_features, loses_no_transfer, open_transfer_data
from vit.figures.confusion_matrix import plot_confusion_matrix
from vit.figures.style import save_figure
from vit.hub import OpenedModel, open_model
from vit.progress import progress_bar
from vit.runs import keep_earlier, write_json
from vit.tasks.classification.config import ClassificationRun
from vit.tasks.classification.mistakes import draw_mistakes
from vit.tasks.earlier import is_repeated
from vit.tasks.image_evaluation import warnings_and_notes
from vit.tasks.task import EvalRequest

_ENDINGS = (
    *(".json", ".npz", ".csv", "_confusion_matrix.png", "_confusion_matrix.json"),
    *("_mistakes.png", "_mistakes.json"),
)
_SPEED = "over all processes, decoding and preprocessing included, from the first image to the last"


def evaluate(request: EvalRequest, config: ClassificationRun) -> dict[str, Any]:
    """Evaluate on the test set, store predictions, metrics and confusion matrix, and return the metrics.

    They are those of `classification_metrics`, `images_per_second` (decoding included), `per_class_accuracy` by class
    name (None for a class without images), those of the frozen features where asked for, on the same test images,
    `warnings` of test images that the run was trained on, and the `file` of all these. ValueError when the data's
    classes are not the checkpoint's, or other preprocessing than the stored is asked for.
    """
    loaded = open_model(request.checkpoint, select=request.select, weights=request.weights, dtype=request.dtype)
    assert loaded.state is not None
    preprocessing = _enforced_preprocessing(config, loaded, request.image_size)
    accelerator = make_accelerator(config.device, config.train.precision)
    if request.transfer:
        check_one_process(accelerator, "--transfer", "the frozen features are evaluated")
    images = open_transfer_data(config.data, request.transfer) if request.transfer else None
    split = with_classes_of(loaded.class_names, images.test if images else open_test(config.data))
    if request.output_dir is not None:
        check_outside("--output_dir", request.output_dir, split.source)
    check_classes(config.data, split.source.class_names, loaded.class_names)
    model = accelerator.prepare(loaded.module_on(accelerator.device))
    loader = EvalLoader(split, preprocessing, config.data, **rank_and_world_size(accelerator))
    started = time.perf_counter()
    gather = partial(gather_uneven, accelerator)
    device, quiet = accelerator.device, not accelerator.is_main_process
    with progress_bar("evaluating", len(split.indices[:: accelerator.num_processes]), unit="img", quiet=quiet) as bar:
        predictions = predict_all(model, loader, loaded.class_names, device=device, gather=gather, progress=bar.update)
    seconds = time.perf_counter() - started
    predictions = replace(predictions, fingerprint=fingerprint(split))
    metrics: dict[str, Any] = dict(classification_metrics(predictions))
    metrics["images_per_second"] = round(len(predictions.labels) / max(seconds, 1e-9), 1)
    recalls = per_class_accuracy(predictions)
    metrics["balanced_accuracy"] = float(np.nanmean(recalls))
    metrics["per_class_accuracy"] = {
        name: None if math.isnan(recall) else recall
        for name, recall in zip(predictions.class_names, recalls.tolist(), strict=True)
    }
    features = None
    if request.transfer and images:
        accelerator.unwrap_model(model, keep_fp32_wrapper=False)  # its forward pass is autocast's until then
        opened = replace(loaded, stated_preprocessing=preprocessing)
        features = images, evaluate_features(opened, images, request.transfer, request.folder, accelerator)
        metrics |= features[1].summary()
    metrics |= {"precision": precision_of(accelerator), "dtype": request.dtype}
    metrics |= warnings_and_notes(loaded, config.data, split, accelerator, features=features)
    if accelerator.is_main_process:
        metrics["file"] = str(_store(request, loaded.state, config.data, split, predictions, metrics))
    accelerator.wait_for_everyone()
    return metrics


def with_classes_of(class_names: list[str], split: Split) -> Split:
    """The same images with classes in this order, where they are the same: a list sorts numbers, folders sort text."""
    source = split.source
    own = source.class_names
    if own == class_names or sorted(own) != sorted(class_names) or not isinstance(source, FileSource):
        return split
    places = torch.tensor([class_names.index(name) for name in own])
    return replace(split, source=replace(source, labels=places[source.labels], class_names=class_names))


def check_classes(data: DataConfig, of_data: list[str], of_checkpoint: list[str]) -> None:
    """ValueError unless the data has the checkpoint's classes, in its order."""
    if of_data == of_checkpoint:
        return
    field, place = ("data.root", data.root) if data.name == data.folder_set else ("data.name", data.name)
    pairs = enumerate(zip_longest(of_data, of_checkpoint))
    index, (theirs, ours) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
    first = f"class {index} is {_or_none(theirs)}, the run's is {_or_none(ours)}"
    check(False, field, place, f"its {len(of_data)} classes are not the run's {len(of_checkpoint)}: {first}")


def _or_none(name: str | None) -> str:
    return "not there" if name is None else repr(name)


def _enforced_preprocessing(config: ClassificationRun, loaded: OpenedModel, image_size: int | None) -> Preprocessing:
    """The stored preprocessing. ValueError where the data section asks for another one."""
    stored = loaded.preprocessing
    asked = config.data.preprocessing(stored.image_size)
    for name in ("crop_fraction", "squash", "interpolation", "antialias", "mean", "std"):
        theirs, ours = getattr(stored, name), getattr(asked, name)
        check(
            theirs == ours,
            f"data.{name}",
            ours,
            f"the checkpoint was trained with {theirs}, which is enforced",
        )
    return stored if image_size is None else replace(stored, image_size=(image_size, image_size))


def _store(
    request: EvalRequest,
    state: Mapping[str, Any],
    data: DataConfig,
    split: Split,
    predictions: Predictions,
    metrics: dict[str, Any],
) -> Path:
    """Write all files, and return that of the metrics."""
    folder = request.folder
    folder.mkdir(parents=True, exist_ok=True)
    size = f"_{request.image_size}px" if request.image_size else ""
    dtype = f"_{request.dtype}" if request.dtype != "auto" else ""
    part = request.transfer.suffix if request.transfer else ""
    stem = f"{place_name(data)}_{request.chosen}_{request.weights}{size}{dtype}{part}"
    sizes, step = sizes_digest(split), state["progress"]["step"]
    if request.transfer:
        metrics["transfer_options"] = asdict(request.transfer)
    files = [f"{stem}{ending}" for ending in _ENDINGS]
    if kept := keep_earlier(folder, stem, files, partial(_is_same, {"step": step, **metrics}, sizes)):
        metrics["notes"] = [*metrics["notes"], f"an earlier evaluation, made otherwise, is kept in {kept}"]
    predictions.save(folder / f"{stem}.npz")
    write_table(folder / f"{stem}.csv", predictions, split.source)
    counts = confusion_matrix(predictions)
    record = {
        "checkpoint": str(request.checkpoint),
        "step": step,
        "data": {"name": data.name, "root": data.root, "fingerprint": predictions.fingerprint, "sizes": sizes},
        **metrics,
        "conventions": CONVENTIONS | {"images_per_second": _SPEED} | (TRANSFER_CONVENTIONS if request.transfer else {}),
    }
    write_json(folder / f"{stem}.json", record)
    numbers = {
        "counts": counts.tolist(),
        "class_names": predictions.class_names,
        "conventions": "rows: true class; columns: predicted class",
    }
    figure = plot_confusion_matrix(counts, predictions.class_names)
    save_figure(figure, folder / f"{stem}_confusion_matrix.png", numbers)
    draw_mistakes(folder / f"{stem}_mistakes.png", predictions, split.source)
    return folder / f"{stem}.json"


def _is_same(record: Mapping[str, Any], sizes: str, before: dict[str, Any]) -> bool:
    """Whether an earlier evaluation gave the same results, unlike one of images that were replaced since then."""
    same = is_repeated(before, record, equal=("step", "n_seen", "top1"), close=("nll",))
    same &= before["data"].get("sizes", sizes) == sizes
    same &= before.get("precision", record["precision"]) == record["precision"]
    return same and loses_no_transfer(before, record.get("transfer_options"))
