"""A trained kernel regression on the curve itself, at places of any number."""

from __future__ import annotations

from typing import Any

from vit.attention.kernel_regression import NadarayaWatson
from vit.config import RegressionRun
from vit.data.functions import even_points
from vit.engine import make_accelerator
from vit.evaluation.checkpoint import Request
from vit.evaluation.regression import CONVENTIONS, judge, regression_metrics
from vit.hub import load_regressor
from vit.runs import write_json
from vit.settings import check_overrides, override

_SETTINGS = ("data.test_points", "data.eval_batch_size", "device")


def evaluate_regressor(request: Request, trained: RegressionRun) -> dict[str, Any]:
    """Errors of the learned and of the fixed kernel at the test points and at the training points, which are stored.

    ValueError for an option about images.
    """
    for option, value in (("--image_size", request.image_size), ("--transfer", request.transfer)):
        if value:
            raise ValueError(f"{option}: it has no effect here; the checkpoint is a kernel regression's")
    check_overrides(trained, request.overrides, _SETTINGS, {})
    config = override(trained, request.overrides)
    assert isinstance(config, RegressionRun)
    model, _ = load_regressor(request.checkpoint, request.select, request.weights)
    accelerator = make_accelerator(config.device, "fp32")
    learned = model.to(accelerator.device).kernel
    fixed = NadarayaWatson(learned.keys, learned.values, config.model.initial_width)
    test = even_points(config.data.test_points).to(accelerator.device)
    metrics = regression_metrics(*(judge(kernel, test, config.data.eval_batch_size) for kernel in (learned, fixed)))
    if accelerator.is_main_process:
        request.folder.mkdir(parents=True, exist_ok=True)
        path = request.folder / f"curve_{len(test)}_{request.select}_{request.weights}.json"
        write_json(path, metrics | {"conventions": CONVENTIONS})
    accelerator.wait_for_everyone()
    return metrics
