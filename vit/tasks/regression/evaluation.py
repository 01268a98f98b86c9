"""`vit eval` of a kernel regression: errors to the curve itself, at any number of places."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from vit.attention.kernel_regression import NadarayaWatson
from vit.engine import make_accelerator
from vit.runs import keep_earlier, write_json
from vit.tasks.earlier import is_repeated
from vit.tasks.regression.config import RegressionRun
from vit.tasks.regression.curve import even_points
from vit.tasks.regression.metrics import CONVENTIONS, evaluate_kernel, regression_metrics
from vit.tasks.regression.model import open_regressor
from vit.tasks.task import EvalRequest


def evaluate(request: EvalRequest, config: RegressionRun) -> dict[str, Any]:
    """Errors of the learned and of the fixed kernel at the test points and at the training points, which are stored.

    ValueError for an option about images.
    """
    asked = {"--image_size": request.image_size, "--transfer": request.transfer, "--dtype": request.dtype != "auto"}
    for option, value in asked.items():
        if value:
            raise ValueError(f"{option}: it has no effect here; the checkpoint is a kernel regression's")
    model, step = open_regressor(request.checkpoint, request.select, request.weights)
    accelerator = make_accelerator(config.device, "fp32")
    learned = model.to(accelerator.device).kernel
    fixed = NadarayaWatson(learned.keys, learned.values, config.model.initial_width)
    test = even_points(config.data.test_points).to(accelerator.device)
    chunk = config.data.eval_batch_size
    metrics: dict[str, Any] = regression_metrics(
        evaluate_kernel(learned, test, chunk), evaluate_kernel(fixed, test, chunk)
    )
    if accelerator.is_main_process:
        request.folder.mkdir(parents=True, exist_ok=True)
        stem = f"curve_{len(test)}_{request.chosen}_{request.weights}"
        if kept := keep_earlier(request.folder, stem, [f"{stem}.json"], partial(_is_same, {"step": step, **metrics})):
            metrics["notes"] = [f"an earlier evaluation gave other numbers; it is kept in {kept}"]
        path = request.folder / f"{stem}.json"
        write_json(path, {"step": step, **metrics, "conventions": CONVENTIONS})
        metrics["file"] = str(path)
    accelerator.wait_for_everyone()
    return metrics


def _is_same(record: Mapping[str, Any], before: dict[str, Any]) -> bool:
    """Whether an earlier evaluation gave the same numbers, but for rounding."""
    before = {"step": record["step"], **before}  # earlier versions did not store it
    equal = ("step", "test.n_seen")
    return is_repeated(before, record, equal=equal, close=[name for name in record if name not in equal])
