"""A classifier for `deployed`: an encoder with a linear probe on its frozen features as its head, in timm's format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import ProgressFn
from vit.config import DataConfig, check
from vit.data.images import open_training
from vit.data.loading import EvalLoader
from vit.data.splits import balanced_subset
from vit.deployment import write_repository
from vit.evaluation.evaluate import collect_outputs
from vit.evaluation.probe import fit_logistic, standardise
from vit.hub import open_model
from vit.models.inference import for_inference
from vit.models.vision_transformer import VisionTransformer


def write_probed(
    encoder: str,
    data: DataConfig,
    folder: Path,
    *,
    images: int | None = None,
    strength: float = 0.01,
    progress: ProgressFn = lambda _: None,
    **options: Any,
) -> float:
    """Fit the head on the data's training images, or on about `images` of them; returns the accuracy on these.

    `strength` is that of `fit_logistic`, `options` are those of `open_model`. ValueError for a model that is no ViT of
    this package or has a head, and for a folder that is not empty.
    """
    opened = open_model(encoder, **options)
    model = opened.model
    rule = "it must be an encoder, a ViT without a head, that vit computes"
    check(isinstance(model, VisionTransformer) and opened.num_classes == 0, "MODEL", encoder, rule)
    assert isinstance(model, VisionTransformer)
    part = balanced_subset(open_training(data)[0], images, stream="probe")
    loader = EvalLoader(part, opened.preprocessing, data)
    progress(f"features of {len(part):,} images")
    _, labels, features = collect_outputs(nn.Identity(), for_inference(model), loader, device=torch.device("cpu"))
    progress("the probe")
    weight, bias = _fit(features, labels, strength)
    model.reset_classifier(len(part.source.class_names))
    assert isinstance(model.head, nn.Linear)
    with torch.no_grad():
        model.head.weight.copy_(weight)
        model.head.bias.copy_(bias)
    names = list(part.source.class_names)
    write_repository(replace(opened, class_names=names, num_classes=len(names)), folder, f"probed/{folder.name}")
    return float(((features @ weight.T + bias).argmax(dim=1) == labels).double().mean())


def _fit(features: Tensor, labels: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Weight (k, c) and bias (k,) for features as they are; the probe itself is fitted to standardised ones."""
    place = torch.stack((torch.zeros(features.shape[1]), torch.ones(features.shape[1])))
    standardised, (zero, one) = standardise(features, place)
    fitted = torch.from_numpy(fit_logistic(standardised, labels, strength)).float()  # k, c + 1
    weight = fitted[:, :-1] * (one - zero)
    return weight, fitted[:, -1] + fitted[:, :-1] @ zero
