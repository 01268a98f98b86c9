"""`vit eval` of contrastive learning: loss, neighbours and their pictures of a test set; and its frozen features."""

from __future__ import annotations

from typing import Any

from vit.config import check
from vit.models import ResNet, VisionTransformer
from vit.models.contrastive import ContrastiveModel, ProjectionConfig
from vit.tasks.contrastive.config import ContrastiveRun
from vit.tasks.contrastive.metrics import Evaluator, views_loader
from vit.tasks.contrastive.report import ContrastiveReport, measure
from vit.tasks.encoder_evaluation import EncoderEvaluation
from vit.tasks.task import EvalRequest


def evaluate(request: EvalRequest, config: ContrastiveRun) -> dict[str, Any]:
    """Evaluate on the test set, store metrics and pictures, and return the metrics.

    ValueError for another image size, and for more than one process with frozen features.
    """
    rule = "the loss is that of images at the size of training; leave it out"
    check(request.image_size is None, "--image_size", request.image_size, rule)
    rule = "views are compared in floating point; leave it out"
    check(request.dtype == "auto", "--dtype", request.dtype, rule)
    evaluation = EncoderEvaluation(request, config)
    trained = evaluation.state["config"]["data"]["batch_size"]
    rule = f"the loss depends on the number of images that are compared, {trained} in training; leave it out"
    check(config.data.batch_size == trained, "data.batch_size", config.data.batch_size, rule)
    opened, accelerator = evaluation.opened, evaluation.accelerator
    assert isinstance(opened.model, VisionTransformer | ResNet)
    model = ContrastiveModel(opened.model, ProjectionConfig(**evaluation.state["task"]["projection"]))
    model.load_state_dict(evaluation.tensors)
    neighbours = evaluation.neighbours(config.contrastive.knn_images, "contrastive.knn_images")
    evaluator = Evaluator(accelerator, config.contrastive.temperature, neighbours)
    views = views_loader(evaluation.split, config, opened.preprocessing, accelerator)
    result = measure(evaluator, accelerator.prepare(model), views, evaluation.loader, config.data)
    return evaluation.store(result, ContrastiveReport.picture)
