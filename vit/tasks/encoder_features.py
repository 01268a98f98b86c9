"""The frozen features of an encoder that is trained without labels, judged by their nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.config import check
from vit.data.images import Split
from vit.data.loading import EvalLoader
from vit.data.splits import balanced_subset
from vit.engine import Accelerator, gather_uneven
from vit.evaluation.evaluate import collect_outputs
from vit.evaluation.transfer import NUM_NEIGHBOURS, knn_predictions
from vit.models import Classifier


@dataclass(frozen=True)
class Neighbours:
    """Training images among which the nearest ones are searched, by the features of an encoder without a head."""

    accelerator: Accelerator
    loader: EvalLoader

    def accuracy(self, encoder: Classifier, loader: EvalLoader) -> float:
        """Accuracy of weighted nearest neighbours for a split's images, the same on every process."""
        _, train_labels, train = self._features(encoder, self.loader)
        _, labels, features = self._features(encoder, loader)
        predicted = torch.from_numpy(knn_predictions(train, train_labels, features))
        return float((predicted == labels).double().mean())

    def nearest(self, encoder: Classifier, loader: EvalLoader, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """A split's images (m,), their `count` nearest training images (m, count), and the cosine similarity to each.

        Images are given by their indices in the sources.
        """
        indices, _, train = self._features(encoder, self.loader)
        queries, _, features = self._features(encoder, loader)
        similarity, places = (F.normalize(features, dim=1) @ F.normalize(train, dim=1).T).topk(count, dim=1)
        return queries, indices[places], similarity

    def _features(self, encoder: Classifier, loader: EvalLoader) -> tuple[Tensor, Tensor, Tensor]:
        return collect_outputs(
            encoder,
            encoder,
            loader,
            device=self.accelerator.device,
            autocast=self.accelerator.autocast,
            gather=partial(gather_uneven, self.accelerator),
            width=encoder.head_hidden_size,
        )


def neighbours_among(train: Split, count: int, setting: str) -> Split:
    """The `count` training images that are searched. ValueError, naming the `setting`, for too few."""
    chosen = balanced_subset(train, count, stream="neighbours")
    rule = f"{NUM_NEIGHBOURS} neighbours vote, and there are {len(chosen)} training images"
    check(len(chosen) >= NUM_NEIGHBOURS, setting, count, rule)
    return chosen
