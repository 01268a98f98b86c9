"""Training a multi-label classifier: the images and the model of a classification, other losses and metrics."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from vit.data.augmented import AugmentedBatch
from vit.data.loading import EvalLoader
from vit.data.splits import Split, fingerprint
from vit.engine import Accelerator, gather_uneven
from vit.evaluation.evaluate import check_seen_once, collect_outputs
from vit.randomness import SampleRandom
from vit.stopwatch import Timer, untimed
from vit.tasks.images import ImageTask
from vit.tasks.multilabel.config import MultilabelRun
from vit.tasks.multilabel.metrics import (
    LabelPredictions,
    best_thresholds,
    decision_metrics,
    ranking_metrics,
)
from vit.tasks.multilabel.table import check_test, open_training
from vit.tasks.task import NonFinite


class Multilabel(ImageTask[MultilabelRun]):
    """The `Task` of a `MultilabelRun`. ValueError for any setting that cannot be honoured."""

    metric = "map"
    metric_is_fraction = True

    def __init__(self, config: MultilabelRun, accelerator: Accelerator, timer: Timer = untimed) -> None:
        super().__init__(config, accelerator, timer)
        self.thresholds = [0.5] * len(self.class_names)

    def open_splits(self) -> tuple[Split, Split]:
        splits = open_training(self.config.data)
        check_test(self.config.data, splits[0].source.class_names)
        return splits

    def losses(self, model: nn.Module, batch: AugmentedBatch, epoch: int) -> tuple[Tensor, Tensor]:
        """Binary cross-entropy averaged over the classes; mixed images have the labels of both, each by its share."""
        rng = SampleRandom.at(self.config.seed, epoch, batch.positions).fork("model")
        logits = model(batch.images, rng=rng).float()
        losses = F.binary_cross_entropy_with_logits(logits, batch.targets, reduction="none").mean(dim=1)
        return losses, losses.new_zeros(len(losses))

    def validate(self, model: nn.Module) -> dict[str, float]:
        """`map`, and F1 at the thresholds that are the best on these images, which are kept in the checkpoint."""
        predictions = self.predict(model, self.val_loader, np.full(len(self.class_names), 0.5))
        if not np.isfinite(predictions.logits).all():
            raise NonFinite("the model's logits of validation images are not finite")
        predictions.thresholds[:] = best_thresholds(predictions)
        # of several models the last one's are kept: of raw and averaged weights the average, which is what is chosen
        # and tested, is validated last (`training/validation.py`)
        self.thresholds = predictions.thresholds.tolist()
        return {**ranking_metrics(predictions), **decision_metrics(predictions)}

    def predict(self, model: nn.Module, loader: EvalLoader, thresholds: np.ndarray) -> LabelPredictions:
        return predict_labels(self.accelerator, model, loader, self.class_names, thresholds)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "thresholds": self.thresholds}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.thresholds = list(state["thresholds"])


def predict_labels(
    accelerator: Accelerator, model: nn.Module, loader: EvalLoader, class_names: list[str], thresholds: np.ndarray
) -> LabelPredictions:
    """The model's logits for the whole split, the same on every process."""
    bare = accelerator.unwrap_model(model)
    gather = partial(gather_uneven, accelerator)
    indices, labels, logits = collect_outputs(
        bare, bare, loader, device=accelerator.device, gather=gather, width=len(class_names)
    )
    return LabelPredictions(
        indices=indices.numpy(),
        labels=labels.numpy().astype(np.uint8),
        logits=logits.numpy(),
        class_names=list(class_names),
        thresholds=thresholds,
        num_total=loader.num_total,
        num_broken=check_seen_once(indices, loader, device=accelerator.device, gather=gather),
        fingerprint=fingerprint(loader.split),
    )


open_task = Multilabel
