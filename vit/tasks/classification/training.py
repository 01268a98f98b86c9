"""Training an image classifier: data, model, losses, validation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vit.config import check
from vit.data.augmented import AugmentedBatch
from vit.data.loading import EvalLoader
from vit.engine import Accelerator
from vit.evaluation.evaluate import predict_all
from vit.evaluation.metrics import classification_metrics
from vit.evaluation.predictions import Predictions
from vit.hub import open_model
from vit.hub.identity import weights_digest
from vit.hub.preprocessing import set_image_size
from vit.randomness import SampleRandom
from vit.stopwatch import Timer, untimed
from vit.tasks.classification.config import ClassificationRun
from vit.tasks.classification.guidance import Guidance
from vit.tasks.classification.losses import class_weights, distillation_losses, target_losses
from vit.tasks.image_weights import check_normalization
from vit.tasks.images import ImageTask
from vit.tasks.task import NonFinite


class Classification(ImageTask[ClassificationRun]):
    """The `Task` of a `ClassificationRun`. ValueError for any setting that cannot be honoured."""

    metric = "top1"
    metric_is_fraction = True
    has_accuracy = True

    def __init__(self, config: ClassificationRun, accelerator: Accelerator, timer: Timer = untimed) -> None:
        super().__init__(config, accelerator, timer)
        distill = config.distill
        if self.teacher is not None:
            self._check_teachers_sizes(self.teacher)
        self.guidance = None
        if self.teacher is not None and distill.kind == "patches":
            size = self.preprocessing.image_size
            self.guidance = Guidance(self.model, self.teacher, size, str(distill.teacher))
        weights = class_weights(config.train, self.train_split.labels, len(self.class_names))
        self.class_weights = None if weights is None else weights.to(accelerator.device)

    def state(self) -> dict[str, Any]:
        return super().state() | ({} if self.teacher is None else {"teacher": self.teacher_digest})

    def load_teacher(self) -> nn.Module | None:
        """The frozen teacher, which must have the student's classes and take the student's images."""
        name = self.config.distill.teacher
        if name is None:
            return None
        try:
            loaded = open_model(name)
        except ValueError as error:
            raise ValueError(f"distill.teacher: {str(error).removeprefix('model.pretrained: ')}") from error
        rule = "it gives an image any number of labels; a teacher of a classifier gives one"
        check(not loaded.multilabel, "distill.teacher", name, rule)
        check(not loaded.provenance.is_random, "distill.teacher", name, "an architecture has no trained weights")
        same = not loaded.class_names or loaded.class_names == self.class_names
        rule = f"it has {loaded.num_classes} classes and the data {len(self.class_names)}"
        check(loaded.num_classes == len(self.class_names), "distill.teacher", name, rule)
        check(same, "distill.teacher", name, "its classes are not the data's")
        check_normalization(self.preprocessing, loaded, name)
        self.teacher_digest = weights_digest(loaded.model)  # before positions are resized, which rounds
        try:
            if loaded.implementation != "transformers":  # whose convolutional models name a size and take any
                set_image_size(loaded, self.preprocessing.image_size)
        except ValueError as error:
            raise ValueError(f"distill.teacher: {name} does not take the student's images: {error}") from error
        return loaded.model.to(self.accelerator.device).requires_grad_(False)

    def _check_teachers_sizes(self, teacher: nn.Module) -> None:
        """ValueError for a teacher that does not take the images of every epoch, which may grow to the model's size."""
        whole = self.preprocessing.image_size
        for height, width in self.train_loader.augment.epochs_by_size(self.config.train.epochs):
            try:
                with torch.no_grad():
                    teacher(torch.zeros(1, 3, height, width, device=self.accelerator.device))
            except (AssertionError, RuntimeError, ValueError) as error:
                reason = " ".join(str(error).split())[:200]
                remedy = "take another one" if (height, width) == whole else "leave out augment.first_image_size"
                rule = f"it does not take images of {height}×{width} ({reason}); {remedy}"
                raise ValueError(f"distill.teacher: {self.config.distill.teacher!r} is not valid: {rule}") from error

    def losses(self, model: nn.Module, batch: AugmentedBatch, epoch: int) -> tuple[Tensor, Tensor]:
        """Compare the model's logits with the targets and, where there is one, with the teacher's."""
        rng = SampleRandom.at(self.config.seed, epoch, batch.positions).fork("model")
        # the teacher supervises the distillation head where there is one
        listens = self.teacher is not None and self.guidance is None
        two_heads = listens and getattr(self.model, "distillation_head", None) is not None
        logits = model(batch.images, rng=rng, separate_heads=two_heads)
        student, distilled = (logits[:, 0], logits[:, 1]) if two_heads else (logits, logits)
        losses = target_losses(student, batch.targets, self.config.train, self.class_weights)
        if self.teacher is not None:
            weight = self.config.distill.weight
            if self.guidance is not None:
                distilled_losses = self.guidance.losses(batch.images)
            else:
                distilled_losses = distillation_losses(distilled, self.teacher, batch.images, self.config.distill)
            losses = (1 - weight) * losses + weight * distilled_losses
        return losses, student.argmax(dim=1) == batch.targets.argmax(dim=1)

    def validate(self, model: nn.Module) -> dict[str, float]:
        self.check_readable()
        predictions = self.predict(model, self.val_loader)
        if not np.isfinite(predictions.logits).all():
            raise NonFinite("the model's logits of validation images are not finite")
        return classification_metrics(predictions)

    def predict(self, model: nn.Module, loader: EvalLoader) -> Predictions:
        """Predictions for a whole split, the same on every process."""
        return predict_all(model, loader, self.class_names, device=self.accelerator.device, gather=self.gather)


open_task = Classification
