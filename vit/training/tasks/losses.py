"""Losses of a batch, one an image: against labels, and against a teacher. Knows no steps, processes or data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.config import DistillConfig, TrainConfig


def target_losses(logits: Tensor, targets: Tensor, config: TrainConfig) -> Tensor:
    """(b,) losses of logits (b, k) against target distributions (b, k), smoothed as configured.

    Cross-entropy, or binary cross-entropy averaged over the classes (Wightman et al. 2021, ResNet strikes back).
    """
    logits = logits.float()
    if config.label_smoothing:
        targets = torch.lerp(targets, torch.full_like(targets, 1 / targets.shape[1]), config.label_smoothing)
    if config.loss == "bce":
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1)
    return F.cross_entropy(logits, targets, reduction="none")


@dataclass(frozen=True)
class Teacher:
    """A frozen model whose predictions on the same augmented images are targets too (DeiT, section 4)."""

    model: nn.Module
    config: DistillConfig

    def losses(self, logits: Tensor, images: Tensor) -> Tensor:
        """(b,) losses of the pupil's logits (b, k).

        `hard`: cross-entropy with the teacher's decision. `soft`: KL divergence at a temperature, times its square
        (Hinton et al. 2015, section 2.1).
        """
        with torch.no_grad():
            targets = self.model(images)
        if self.config.kind == "hard":
            return F.cross_entropy(logits, targets.argmax(dim=1), reduction="none")
        temperature = self.config.temperature
        divergence = F.kl_div(
            F.log_softmax(logits / temperature, dim=1),
            F.log_softmax(targets / temperature, dim=1),
            reduction="none",
            log_target=True,
        )
        return divergence.sum(dim=1) * temperature**2
