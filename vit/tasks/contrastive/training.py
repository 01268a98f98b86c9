"""Contrastive learning: data, model, losses, validation."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from vit.data.augment import TwoViews
from vit.data.augmented import AugmentedBatch, AugmentingLoader
from vit.data.images import Split
from vit.engine import Accelerator
from vit.models.contrastive import ContrastiveModel, ProjectionConfig
from vit.models.model import ENCODER
from vit.randomness import SampleRandom
from vit.stopwatch import Timer, untimed
from vit.tasks.contrastive.config import ContrastiveConfig, ContrastiveRun
from vit.tasks.contrastive.metrics import FEWEST_COMPARED, Evaluator, step_losses, views_loader
from vit.tasks.encoder_features import Neighbours, neighbours_among
from vit.tasks.images import ImageTask
from vit.tasks.task import NonFinite

_KNN_IMAGES = "contrastive.knn_images"


class ContrastiveLearning(ImageTask[ContrastiveRun]):
    """The `Task` of a `ContrastiveRun`. ValueError for any setting that cannot be honoured."""

    metric = "loss"
    higher_is_better = False
    accuracies = ("knn",)
    augmentation = TwoViews
    fewest_in_step = FEWEST_COMPARED
    cuts_steps = False

    def __init__(self, config: ContrastiveRun, accelerator: Accelerator, timer: Timer = untimed) -> None:
        super().__init__(config, accelerator, timer)
        self.contrastive_model = ContrastiveModel(self.backbone, projection_of(config.contrastive))
        searched = neighbours_among(self.train_split, config.contrastive.knn_images, _KNN_IMAGES)
        neighbours = Neighbours(accelerator, self.eval_loader(searched), _KNN_IMAGES)
        self.evaluator = Evaluator(accelerator, config.contrastive.temperature, neighbours)
        self.val_views = self.views(self.val_split)

    @property
    def model(self) -> ContrastiveModel:
        return self.contrastive_model

    @property
    def num_outputs(self) -> int:
        return 0

    def views(self, split: Split) -> AugmentingLoader:
        return views_loader(split, self.config, self.preprocessing, self.accelerator)

    def validate_on(self, split: Split) -> None:
        super().validate_on(split)
        self.val_views = self.views(split)

    def losses(self, model: nn.Module, batch: AugmentedBatch, epoch: int) -> tuple[Tensor, Tensor]:
        """Cross-entropies of choosing an image's other view among all views of the step."""
        rng = SampleRandom.at(self.config.seed, epoch, batch.positions).fork("model")
        losses = step_losses(model, batch, rng, self.config.contrastive.temperature, self.accelerator)
        return losses, losses.new_zeros(len(losses))

    def validate(self, model: nn.Module) -> dict[str, float]:
        """`loss`, and `knn`: accuracy of the encoder's frozen features by neighbours among training images."""
        loss = self.evaluator.loss(model, self.val_views)
        if not math.isfinite(loss):
            raise NonFinite("the loss of validation images is not finite")
        return {"loss": loss, "knn": self.evaluator.knn_accuracy(model, self.val_loader)[0]}

    def state(self) -> dict[str, Any]:
        """The encoder is a model by itself, whose tensors' names begin with `encoder`; it has no classes."""
        own = {"class_names": [], "encoder": ENCODER, "projection": asdict(projection_of(self.config.contrastive))}
        return {**super().state(), **own}


def projection_of(config: ContrastiveConfig) -> ProjectionConfig:
    return ProjectionConfig(config.projection_hidden, config.projection_width)


open_task = ContrastiveLearning
