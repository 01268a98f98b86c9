"""An image classifier's losses, one an image: against labels, and against a teacher."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.config import check
from vit.tasks.classification.config import ClassificationTrainConfig, DistillConfig


def class_weights(config: ClassificationTrainConfig, labels: Tensor, num_classes: int) -> Tensor | None:
    """The weight (k,) of every class as configured, from the training images' labels (n,); None: all are 1.

    ValueError for a list of another length.
    """
    weights = config.class_weights
    if weights == "none":
        return None
    if weights == "balanced":
        return len(labels) / (num_classes * torch.bincount(labels, minlength=num_classes).float())
    rule = f"the data has {num_classes} classes"
    check(len(weights) == num_classes, "train.class_weights", weights, rule)
    return torch.tensor([float(weight) for weight in weights])


def target_losses(
    logits: Tensor, targets: Tensor, config: ClassificationTrainConfig, weights: Tensor | None = None
) -> Tensor:
    """(b,) losses of logits (b, k) against target distributions (b, k), smoothed as configured, weighted by class (k,).

    Cross-entropy, or binary cross-entropy averaged over the classes (Wightman et al. 2021, ResNet strikes back; their
    recipes and DeiT III's set both classes of a mixed image to 1, here they keep their shares). A
    weight multiplies the loss of its class's images; smoothed cross-entropy is weighted as in torch.
    """
    logits = logits.float()
    image_weights = 1.0 if weights is None else targets @ weights  # of the labels, before they are smoothed
    if config.label_smoothing:
        targets = torch.lerp(targets, torch.full_like(targets, 1 / targets.shape[1]), config.label_smoothing)
    if config.loss == "bce":
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1) * image_weights
    return F.cross_entropy(logits, targets, weights, reduction="none")


def distillation_losses(logits: Tensor, teacher: nn.Module, images: Tensor, config: DistillConfig) -> Tensor:
    """(b,) losses of the student's logits (b, k) against a frozen teacher on the same images (DeiT, section 4).

    `hard`: cross-entropy with the teacher's decision. `soft`: KL divergence at a temperature, times its square
    (Hinton et al. 2015, section 2.1).
    """
    with torch.no_grad():
        targets = teacher(images)
    if config.kind == "hard":
        return F.cross_entropy(logits, targets.argmax(dim=1), reduction="none")
    divergence = F.kl_div(
        F.log_softmax(logits / config.temperature, dim=1),
        F.log_softmax(targets / config.temperature, dim=1),
        reduction="none",
        log_target=True,
    )
    return divergence.sum(dim=1) * config.temperature**2
