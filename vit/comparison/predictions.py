"""Predictions of the compared models, read from a run or an earlier comparison, or computed.

Computed predictions are stored model by model, so that a stopped comparison continues. They are used again only for the
same weights, images, labels, preprocessing, precision and device. A run's own predictions are used if they are of the
same weights and images and no image file has changed since; names alone do not make images the same, so their place or
their contents must be the same too. They keep the run's preprocessing and precision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vit.comparison.metrics import ModelPredictions
from vit.config import DataConfig
from vit.data.identity import file_identities, paths_of, sizes_digest
from vit.data.images import MissingImages, Split, fingerprint, open_training
from vit.data.run_images import FILE_NAME, read_images
from vit.data.splits import balanced_subset
from vit.engine import Accelerator, precision_of
from vit.evaluation.cache_key import cache_key, file_stem, last_modified
from vit.evaluation.class_maps import NUM_CLASSES, imagenet_columns
from vit.evaluation.head_columns import readable_class_names
from vit.evaluation.model_evaluation import predict_opened
from vit.evaluation.predictions import Predictions
from vit.hub import OpenedModel
from vit.hub.opening import is_opened_by_default
from vit.hub.run_history import State, data_of_run, lineage, why_unread
from vit.runs import write_json


@dataclass(frozen=True)
class EvalSet:
    """The images that every model is evaluated on, and how. Names of stored files end in `name`."""

    name: str
    split: Split
    full_split: Split
    """The split that `split` was chosen from; a run has predictions for all of it."""
    data: DataConfig
    folder: Path
    accelerator: Accelerator


@dataclass(frozen=True)
class EvalResult:
    predictions: Predictions
    """Logits of the data's classes only, in the data's order."""
    source: str
    """`run`, `stored` or `computed`."""
    precision: str | None
    """That they were computed in; None: of an evaluation by an earlier version, which does not tell."""
    unrestricted_top1: float | None = None
    """Accuracy among all classes of the head, where it has more than the data."""
    imagenet_classes: NDArray[np.int64] | None = None
    """(n,) ImageNet class predicted by a head of ImageNet's thousand classes; None for any other head, and for data
    without ImageNet's classes.
    """


def get_predictions(model: OpenedModel, columns: Sequence[int], eval_set: EvalSet) -> EvalResult:
    """Read or compute the model's predictions; `columns[k]` is the index of the data's class k in the model's head.

    ValueError as raised by `predict` and the loader.
    """
    may_skip = eval_set.data.on_broken_image == "skip"  # else computing raises the error, which names the image
    of_run = _run_predictions(model, eval_set)
    if of_run is not None and (may_skip or of_run[0].num_broken == 0):
        return replace(_restrict(of_run[0], columns, eval_set, "run"), precision=of_run[1])
    path = eval_set.folder / f"{file_stem(model)}_{eval_set.name}.npz"
    key = cache_key(model, eval_set.split, eval_set.accelerator)
    stored = _load_stored(path, key)
    if stored is not None and (may_skip or stored.num_broken == 0):
        return _restrict(stored, columns, eval_set, "stored")
    computed = compute_predictions(model, eval_set)
    path.with_suffix(".json").unlink(missing_ok=True)  # else it would describe other predictions for a moment
    computed.save(path)
    write_json(path.with_suffix(".json"), key)
    return _restrict(computed, columns, eval_set, "computed")


def _load_stored(path: Path, key: dict[str, Any]) -> Predictions | None:
    try:
        return Predictions.load(path) if json.loads(path.with_suffix(".json").read_text()) == key else None
    except (OSError, ValueError):  # missing, or interrupted while being written
        return None


def _run_predictions(model: OpenedModel, eval_set: EvalSet) -> tuple[Predictions, str | None] | None:
    """Read predictions stored by the run at its end or by `vit eval`, and their precision, if they are of these weights
    and images, prepared in the same way.
    """
    if model.checkpoint is None or model.state is None or model.dtype != "auto" or eval_set.name != "test":
        return None
    images, trained_step = fingerprint(eval_set.full_split), model.state.get("progress", {}).get("step")
    run = model.checkpoint.resolve().parent.parent
    candidates = [(run / "summary.json", run / "predictions" / "test.npz", "best.step")]
    # `vit eval` names a file `…_auto` if the run's default weights were evaluated at the model's own image size.
    for record in sorted((run / "predictions").glob("*_auto.json")):
        candidates.append((record, record.with_suffix(".npz"), "step"))
    for record, file, key in candidates:
        try:
            content = _read_object(record)
            stored, written = Predictions.load(file), file.stat().st_mtime
        except (OSError, ValueError):
            continue
        if trained_step is None or content.get(key) != trained_step or stored.fingerprint != images:
            continue
        if last_modified(eval_set.split) > written or not is_opened_by_default(model, model.checkpoint):
            continue
        if _evaluated(content, eval_set) if key == "step" else _tested(model.state, run, eval_set):
            chosen, num_total = _select_images(stored, eval_set.split.indices.numpy()), len(eval_set.split)
            num_broken, images = num_total - len(chosen.indices), fingerprint(eval_set.split)
            found = replace(chosen, num_total=num_total, num_broken=num_broken, fingerprint=images)
            return found, content.get("precision")
    return None


def _evaluated(record: Mapping[str, Any], eval_set: EvalSet) -> bool:
    """Whether the record of `vit eval` is of these files: equal names are in other places too, as in ImageNet-C."""
    data = record.get("data", {})
    return _is_root(data.get("root"), eval_set) and data.get("sizes") == sizes_digest(eval_set.full_split)


def _tested(state: State, run: Path, eval_set: EvalSet) -> bool:
    """Whether a run was tested with these files, by their place or, if they were moved, by the run's list of them."""
    split = eval_set.full_split
    try:
        data = data_of_run(state)
        if data is not None and _is_root(data.root, eval_set):
            return True
        listed = read_images(run / FILE_NAME)
    except (OSError, ValueError):
        return False
    tested = {file: image.identity for file, image in listed.items() if image.part == "test"}
    before = [tested.get(split.source.name(index), "") for index in split.indices.tolist()]
    return all(before) and before == file_identities(paths_of(split), "test images")


def _is_root(root: str | None, eval_set: EvalSet) -> bool:
    return root is not None and Path(root).resolve() == Path(eval_set.data.root).resolve()


def _read_object(path: Path) -> dict[str, Any]:
    """ValueError for JSON of anything else."""
    content = json.loads(path.read_text())
    if not isinstance(content, dict):
        raise ValueError(f"{path}: no object")
    return content


def compute_predictions(model: OpenedModel, eval_set: EvalSet, *, quiet: bool = False) -> Predictions:
    """Compute logits of the model's whole head; `labels` are the data's. `quiet` hides the progress bar."""
    title = f"{model.name}, {eval_set.name}"
    return predict_opened(model, eval_set.split, eval_set.data, eval_set.accelerator, title=title, quiet=quiet)


def _restrict(predictions: Predictions, columns: Sequence[int], eval_set: EvalSet, source: str) -> EvalResult:
    indices: NDArray[np.int64] = np.asarray(columns, dtype=np.int64)
    names = eval_set.split.source.class_names
    logits = predictions.logits
    restricted = replace(predictions, logits=logits[:, indices], class_names=readable_class_names(names))
    predicted = logits.argmax(axis=1)
    is_larger = logits.shape[1] > len(names)
    unrestricted = float((predicted == indices[predictions.labels]).mean()) if is_larger else None
    is_imagenet = logits.shape[1] == NUM_CLASSES and list(columns) == imagenet_columns(names)
    precision = precision_of(eval_set.accelerator)
    return EvalResult(restricted, source, precision, unrestricted, predicted if is_imagenet else None)


def _select_images(predictions: Predictions, indices: NDArray[np.int64]) -> Predictions:
    rows = np.isin(predictions.indices, indices)
    return replace(
        predictions,
        indices=predictions.indices[rows],
        labels=predictions.labels[rows],
        logits=predictions.logits[rows],
    )


def add_validation(
    models: Sequence[OpenedModel],
    columns: Sequence[Sequence[int]],
    results: Sequence[EvalResult],
    eval_set: EvalSet,
) -> list[ModelPredictions]:
    """Pair each model's test predictions with predictions for at most as many validation images.

    Test predictions are kept for the images that every model could read. Temperatures are fitted on the validation
    images, so a run of ours must have held them out, and so must the runs that it began from on the same data. The
    training data of other models is unknown; `confounders` warns.
    """
    tests = [result.predictions for result in results]
    common = set.intersection(*(set(test.indices.tolist()) for test in tests))
    tests = [_select_images(test, np.array(sorted(common), dtype=np.int64)) for test in tests]
    try:
        validation, missing = open_training(eval_set.data)[1], ""
    except MissingImages as error:
        validation, missing = None, f"no validation images ({error})"
    paired = []
    for model, head_indices, test in zip(models, columns, tests, strict=True):
        reason = missing
        if validation and model.state is not None:
            reason = _why_not_held_out(model.state, validation)
        if validation is None or reason:
            paired.append(ModelPredictions(model.name, test, None, reason))
            continue
        part = balanced_subset(validation, len(test.labels), stream="comparison")
        val_set = replace(eval_set, name="val", split=part, full_split=validation)
        result = get_predictions(model, head_indices, val_set)
        paired.append(ModelPredictions(model.name, test, result.predictions))
    return paired


def _why_not_held_out(state: State, validation: Split) -> str:
    """Why the validation images may be training images of a run or of one that it began from; empty if they are not.

    Of the runs that it began from, those on other data say nothing about these images.
    """
    own, images, name = _data_set(state), fingerprint(validation), "the run"
    for each in lineage(state) if "config" in state else (state,):
        held_out = str(each.get("data_fingerprint", "")).partition("+")[2]
        if held_out != images and _data_set(each) == own:
            return f"{name} held out other images than these, so it may have been trained on them"
        if "config" in each:
            name = f"the run {each['config']['model']['pretrained']}, which it began from,"
    if "config" in each and (reason := why_unread(each)):
        return f"{name} may have been trained on them, which could not be checked: {reason}"
    return ""


def _data_set(state: State) -> tuple[str, Path | None] | None:
    """The name of a run's data set and, for a folder, its place: two runs with the same have the same data."""
    data = data_of_run(state)
    return None if data is None else (data.name, Path(data.root).resolve() if data.name == "imagefolder" else None)
