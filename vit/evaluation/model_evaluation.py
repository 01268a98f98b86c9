"""Evaluation of any opened model on a data set: `vit eval` for models that are not training runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from vit.config import DataConfig, check
from vit.data.images import fingerprint, open_test, open_training
from vit.data.loading import EvalLoader
from vit.engine import make_accelerator
from vit.evaluation.evaluate import predict_all
from vit.evaluation.head_columns import head_columns, readable_class_names
from vit.evaluation.metrics import CONVENTIONS, classification_metrics
from vit.evaluation.transfer import CONVENTIONS as TRANSFER_CONVENTIONS
from vit.evaluation.transfer import transfer_metrics
from vit.hub import OpenedModel
from vit.runs import write_json


def evaluate_model(
    opened: OpenedModel, data: DataConfig, folder: Path, *, transfer: bool = False, device: str = "auto"
) -> dict[str, Any]:
    """Compute metrics on the data's test images and store them in `folder`.

    A head with more classes is restricted to the data's. `transfer` also evaluates the frozen features, and only these
    if the model has no head. ValueError for a head of other classes, and without `transfer` for a model without a head.
    """
    accelerator = make_accelerator(device, "auto")
    rule = "models that are not runs are evaluated by one process; leave out accelerate launch"
    check(accelerator.num_processes == 1, "processes", accelerator.num_processes, rule)
    split = open_test(data)
    metrics: dict[str, Any] = {}
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^\w.-]+", "_", f"{opened.name} {data.name}")
    model = opened.model.to(accelerator.device)
    test = EvalLoader(split, opened.preprocessing, data)
    if opened.num_classes or not transfer:
        columns = head_columns(opened, split.source.class_names)
        names = opened.class_names or [str(number) for number in range(opened.num_classes)]
        predictions = predict_all(model, test, names, device=accelerator.device, autocast=accelerator.autocast)
        predictions = replace(
            predictions,
            logits=predictions.logits[:, columns],
            class_names=readable_class_names(split.source.class_names),
            fingerprint=fingerprint(split),
        )
        predictions.save(folder / f"{stem}.npz")
        metrics |= classification_metrics(predictions)
    if transfer:
        train = EvalLoader(open_training(data)[0], opened.preprocessing, data)
        metrics |= transfer_metrics(model, train, test, device=accelerator.device)
    record = {
        "model": opened.source,
        "computed_by": opened.implementation,
        "weights": opened.identity,
        "opened": opened.summary(),
        **metrics,
    }
    conventions = CONVENTIONS | (TRANSFER_CONVENTIONS if transfer else {})
    write_json(folder / f"{stem}.json", record | {"conventions": conventions})
    return record
