"""What a model is trained to do: a batch in, one loss an image out. Knows losses; does not know processes or steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.config import DistillConfig, TrainConfig
from vit.data.augment import Augment
from vit.data.loading import TrainBatch
from vit.randomness import SampleRandom


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


class Classification:
    """Augment a batch, run the model, compare with the labels and, where there is one, with the teacher."""

    def __init__(self, augment: Augment, config: TrainConfig, seed: int, teacher: Teacher | None = None) -> None:
        self.augment = augment
        self.config = config
        self.seed = seed
        self.teacher = teacher

    def __call__(
        self, model: nn.Module, batch: TrainBatch, epoch: int, two_heads: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Losses and correctness, both (b,), of a batch on the device.

        `two_heads`: the model has a distillation head beside the class head; the teacher is the target of the former.
        """
        images, targets = self.augment(batch, seed=self.seed, epoch=epoch)
        rng = SampleRandom.at(self.seed, epoch, batch.positions).fork("model")
        logits = model(images, rng=rng, separate_heads=two_heads)
        pupil, distilled = (logits[:, 0], logits[:, 1]) if two_heads else (logits, logits)
        losses = target_losses(pupil, targets, self.config)
        if self.teacher is not None:
            weight = self.teacher.config.weight
            losses = (1 - weight) * losses + weight * self.teacher.losses(distilled, images)
        correct = pupil.argmax(dim=1) == targets.argmax(dim=1)
        return losses, correct


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
