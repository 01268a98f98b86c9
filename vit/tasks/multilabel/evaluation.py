"""`vit eval` of a multi-label classifier: the images of a test table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vit.config import check
from vit.data.file_source import check_outside
from vit.data.loading import EvalLoader
from vit.data.splits import Split
from vit.engine import make_accelerator, rank_and_world_size
from vit.hub import open_model
from vit.runs import keep_earlier, write_json
from vit.tasks.earlier import is_repeated
from vit.tasks.image_evaluation import warnings_and_notes
from vit.tasks.multilabel.config import MultilabelRun
from vit.tasks.multilabel.metrics import CONVENTIONS, decision_metrics, metrics_by_class, ranking_metrics
from vit.tasks.multilabel.report import draw_classes
from vit.tasks.multilabel.table import open_test, open_trained
from vit.tasks.multilabel.training import predict_labels
from vit.tasks.task import EvalRequest

_ENDINGS = (".json", ".npz", "_average_precision.png", "_average_precision.json")


def evaluate(request: EvalRequest, config: MultilabelRun) -> dict[str, Any]:
    """Evaluate on the test table at the checkpoint's thresholds, store predictions and metrics, and return these.

    `warnings` name test images that the run was trained on.
    ValueError for labels that the checkpoint does not know, and for raw weights where an average was validated.
    """
    check(not request.transfer, "--transfer", True, "frozen features are evaluated on images with one class each")
    rule = "thresholds were chosen for the averaged weights; leave it out"
    check(request.weights != "raw" or config.train.ema_decay is None, "--weights", request.weights, rule)
    opened = open_model(request.checkpoint, select=request.select, weights=request.weights, dtype=request.dtype)
    preprocessing = opened.preprocessing
    if request.image_size is not None:
        preprocessing = replace(preprocessing, image_size=(request.image_size, request.image_size))
    accelerator = make_accelerator(config.device, config.train.precision)
    place = rank_and_world_size(accelerator)
    test = open_test(config.data, opened.class_names)
    if request.output_dir is not None:
        check_outside("--output_dir", request.output_dir, test.source)
    loader = EvalLoader(test, preprocessing, config.data, **place)
    thresholds = np.array(opened.thresholds)
    model = accelerator.prepare(opened.module_on(accelerator.device))
    predictions = predict_labels(accelerator, model, loader, opened.class_names, thresholds)
    metrics: dict[str, Any] = {**ranking_metrics(predictions), **decision_metrics(predictions)}
    metrics["dtype"] = request.dtype
    metrics["classes"] = metrics_by_class(predictions)
    # without settings of the data: tables may name an image twice, so images are compared in every case
    metrics |= warnings_and_notes(opened, None, test, accelerator, open_table=open_trained)
    if accelerator.is_main_process:
        request.folder.mkdir(parents=True, exist_ok=True)
        size = f"_{request.image_size}px" if request.image_size else ""
        dtype = f"_{request.dtype}" if request.dtype != "auto" else ""
        stem = f"{Path(config.data.test_table).stem}_{request.chosen}_{request.weights}{size}{dtype}"
        files = [f"{stem}{ending}" for ending in _ENDINGS]
        assert opened.state is not None
        step = {"step": opened.state["progress"]["step"]}
        if kept := keep_earlier(request.folder, stem, files, partial(_is_same, step | metrics)):
            metrics["notes"].append(f"an earlier evaluation, made otherwise, is kept in {kept}")
        predictions.save(request.folder / f"{stem}.npz")
        write_json(request.folder / f"{stem}.json", {**step, **metrics, "conventions": CONVENTIONS})
        draw_classes(predictions, request.folder / f"{stem}_average_precision.png")
        metrics["file"] = str(request.folder / f"{stem}.json")
    accelerator.wait_for_everyone()
    return metrics


def _is_same(record: Mapping[str, Any], before: dict[str, Any]) -> bool:
    """Whether an earlier evaluation gave the same results, but for rounding."""
    before = {"step": record["step"], **before}  # earlier versions did not store it
    return is_repeated(before, record, equal=("step", "n_seen", "n_total"), close=("map", "f1_macro", "f1_micro"))


def open_test_images(config: MultilabelRun) -> Split:
    """All images of the test table. ValueError for a table that is not as it should be."""
    return open_test(config.data)
