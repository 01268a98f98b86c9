"""Evaluation of any opened model on a data set: `vit eval` for models that are not training runs."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from vit.config import DataConfig, check_arguments
from vit.data.file_source import check_outside, notes_of
from vit.data.identity import sizes_digest
from vit.data.images import Split, fingerprint, open_test, place_name
from vit.data.loading import EvalLoader
from vit.engine import Accelerator, check_one_process, make_accelerator, precision_of
from vit.evaluation.evaluate import predict_all
from vit.evaluation.head_columns import UnmatchedClasses, head_columns, readable_class_names
from vit.evaluation.metrics import CONVENTIONS, classification_metrics
from vit.evaluation.predictions import Predictions, write_table
from vit.evaluation.seen_images import seen_images, warnings_of
from vit.evaluation.transfer_evaluation import CONVENTIONS as TRANSFER_CONVENTIONS
from vit.evaluation.transfer_evaluation import (
    TransferOptions,
    evaluate_features,
    loses_no_transfer,
    open_transfer_data,
    warnings_of_copies,
)
from vit.hub import OpenedModel
from vit.progress import progress_bar
from vit.runs import keep_earlier, write_json

_ENDINGS = (".json", ".npz", ".csv")


@check_arguments
def evaluate_model(
    opened: OpenedModel,
    data: DataConfig,
    folder: str | Path,
    *,
    transfer: TransferOptions | None = None,
    device: str = "auto",
    precision: str = "auto",
) -> dict[str, Any]:
    """Compute metrics on the data's test images and store them in `folder`.

    A head with more classes is restricted to the data's. `transfer` also evaluates the frozen features, on the same
    test images, and only these if the model has no head, or one of other classes or of random weights. `warnings` name
    test images that a run was trained on.
    ValueError, without `transfer`, for a head of other classes and a model without a head.
    """
    accelerator = make_accelerator(device, precision)
    opened.check_device(accelerator.device)
    check_one_process(accelerator, "model", "models that are not runs are evaluated")
    folder = Path(folder)
    images = None if transfer is None else open_transfer_data(data, transfer)
    test = open_test(data) if images is None else images.test
    check_outside("--output_dir", folder, test.source)
    stem = re.sub(r"[^\w.-]+", "_", f"{opened.name} {place_name(data)}") + (transfer.suffix if transfer else "")
    record: dict[str, Any] = {
        "model": opened.source,
        "computed_by": opened.implementation,
        "weights": opened.identity,
        "opened": opened.summary(),
        "data": {"name": data.name, "root": data.root, "fingerprint": fingerprint(test), "sizes": sizes_digest(test)},
        "precision": precision_of(accelerator),
        "dtype": opened.dtype,
        "preprocessing": json.loads(json.dumps(asdict(opened.preprocessing))),
        "warnings": [
            *warnings_of(seen_images(opened, data, test)),
            *([] if images is None else warnings_of_copies(images)),
        ],
        "notes": notes_of(test.source),
    }
    if transfer is not None:
        record["transfer_options"] = asdict(transfer)
    if reason := _head_left_out(opened, test, beside_features=images is not None):
        record["head"] = f"not evaluated: {reason}"
    if kept := keep_earlier(folder, stem, [f"{stem}{ending}" for ending in _ENDINGS], partial(_is_same, record)):
        record["notes"] = [*record["notes"], f"an earlier evaluation, made otherwise, is kept in {kept}"]
    if "head" not in record:
        record |= _head_metrics(opened, test, data, accelerator, folder / f"{stem}.npz")
    conventions = CONVENTIONS
    if transfer is not None and images is not None:
        folder.mkdir(parents=True, exist_ok=True)
        evaluated = evaluate_features(opened, images, transfer, folder, accelerator)
        record |= evaluated.summary()
        record["warnings"] = [*record["warnings"], *evaluated.warnings()]
        conventions = CONVENTIONS | TRANSFER_CONVENTIONS
    write_json(folder / f"{stem}.json", record | {"conventions": conventions})
    return record | {"file": str(folder / f"{stem}.json")}


def _head_left_out(opened: OpenedModel, test: Split, *, beside_features: bool) -> str:
    """Why only the features are evaluated; empty where the head is too. UnmatchedClasses without features."""
    if beside_features and opened.provenance.is_random:
        return "its weights are random"
    try:
        head_columns(opened, test.source.class_names)
    except UnmatchedClasses as error:
        if not beside_features:
            raise
        return error.reason
    return ""


def _is_same(record: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether an earlier evaluation was made alike, and has nothing that this one will not have."""
    alike = all(before[name] == record[name] for name in ("weights", "precision", "preprocessing"))
    alike &= {"sizes": record["data"]["sizes"], **before["data"]} == record["data"]  # earlier versions had no sizes
    loses_head = "head" in record and "top1" in before
    return alike and not loses_head and loses_no_transfer(before, record.get("transfer_options"))


def predict_opened(
    opened: OpenedModel, split: Split, data: DataConfig, accelerator: Accelerator, *, title: str, quiet: bool = False
) -> Predictions:
    """Logits of the model's whole head for a split, with a progress bar; `labels` are the data's."""
    loader = EvalLoader(split, opened.preprocessing, replace(data, cache_gib=0.0))  # images are read once
    names = opened.class_names or [str(number) for number in range(opened.num_classes)]
    model, device = opened.module_on(accelerator.device), accelerator.device
    with progress_bar(title, len(split), unit="img", quiet=quiet) as bar:
        found = predict_all(model, loader, names, device=device, autocast=accelerator.autocast, progress=bar.update)
    model.to("cpu")
    return replace(found, fingerprint=fingerprint(split))


def _head_metrics(
    opened: OpenedModel, split: Split, data: DataConfig, accelerator: Accelerator, path: Path
) -> dict[str, Any]:
    """Metrics of the head's predictions, which are stored. UnmatchedClasses for a head of other classes, or none."""
    columns = head_columns(opened, split.source.class_names)
    path.parent.mkdir(parents=True, exist_ok=True)
    predictions = predict_opened(opened, split, data, accelerator, title=opened.name)
    names = readable_class_names(split.source.class_names)
    predictions = replace(predictions, logits=predictions.logits[:, columns], class_names=names)
    predictions.save(path)
    write_table(path.with_suffix(".csv"), predictions, split.source)
    return classification_metrics(predictions)
