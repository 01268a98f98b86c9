"""`vit eval` of a masked autoencoder: losses, neighbours and pictures of a test set; and its frozen features."""

from __future__ import annotations

from typing import Any

from vit.config import check
from vit.models import VisionTransformer
from vit.models.masked_autoencoder import DecoderConfig, MaskedAutoencoder
from vit.tasks.encoder_evaluation import EncoderEvaluation
from vit.tasks.masked_autoencoder.config import MaskedAutoencoderRun
from vit.tasks.masked_autoencoder.metrics import Evaluator
from vit.tasks.masked_autoencoder.report import MaskedAutoencoderReport, measure
from vit.tasks.task import EvalRequest


def evaluate(request: EvalRequest, config: MaskedAutoencoderRun) -> dict[str, Any]:
    """Evaluate on the test set, store metrics and pictures, and return the metrics.

    ValueError for another image size, and for more than one process with frozen features.
    """
    rule = "patches are hidden at the size of training; leave it out"
    check(request.image_size is None, "--image_size", request.image_size, rule)
    rule = "pixels are restored in floating point; leave it out"
    check(request.dtype == "auto", "--dtype", request.dtype, rule)
    evaluation = EncoderEvaluation(request, config)
    encoder, accelerator = evaluation.opened.model, evaluation.accelerator
    assert isinstance(encoder, VisionTransformer)
    autoencoder = MaskedAutoencoder(encoder, DecoderConfig(**evaluation.state["task"]["decoder"]))
    autoencoder.load_state_dict(evaluation.tensors)
    evaluator = Evaluator(accelerator, config.mae, evaluation.neighbours(config.mae.knn_images, "mae.knn_images"))
    result = measure(evaluator, accelerator.prepare(autoencoder), evaluation.loader, config.data)
    return evaluation.store(result, MaskedAutoencoderReport.picture)
