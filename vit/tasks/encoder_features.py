"""The frozen features of an encoder that is trained without labels, evaluated by their nearest neighbours."""

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
from vit.evaluation.evaluate import check_seen_once, collect_outputs
from vit.evaluation.transfer import NUM_NEIGHBOURS, knn_predictions
from vit.models import Classifier


@dataclass(frozen=True)
class Neighbours:
    """Training images among which the nearest ones are searched, by the features of an encoder without a head."""

    accelerator: Accelerator
    loader: EvalLoader
    setting: str
    """The name of the setting that says how many there are."""

    def accuracy(self, encoder: Classifier, loader: EvalLoader) -> tuple[float, Tensor]:
        """Accuracy of weighted nearest neighbours for a split's images, and the indices (n,) of the readable ones.

        The same on every process. ValueError for too few training images that can be read.
        """
        _, train_labels, train = self._features(encoder, self.loader)
        total = self.loader.num_total
        rule = f"{NUM_NEIGHBOURS} neighbours vote, and only {len(train)} of these training images could be read"
        check(len(train) >= NUM_NEIGHBOURS, self.setting, total, rule)
        indices, labels, features = self._features(encoder, loader)
        predicted = torch.from_numpy(knn_predictions(train, train_labels, features))
        return float((predicted == labels).double().mean()), indices

    def nearest(self, encoder: Classifier, loader: EvalLoader, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """A split's images (m,), their `count` nearest training images (m, count), and the cosine similarity to each.

        Images are given by their indices in the sources.
        """
        indices, _, train = self._features(encoder, self.loader)
        queries, _, features = self._features(encoder, loader)
        similarity, places = (F.normalize(features, dim=1) @ F.normalize(train, dim=1).T).topk(count, dim=1)
        return queries, indices[places], similarity

    def _features(self, encoder: Classifier, loader: EvalLoader) -> tuple[Tensor, Tensor, Tensor]:
        device, gather = self.accelerator.device, partial(gather_uneven, self.accelerator)
        autocast, width = self.accelerator.autocast, encoder.head_hidden_size
        found = collect_outputs(encoder, encoder, loader, device=device, autocast=autocast, gather=gather, width=width)
        check_seen_once(found[0], loader, device=device, gather=gather)
        return found


def neighbours_among(train: Split, count: int, setting: str) -> Split:
    """The `count` training images that are searched. ValueError, naming the `setting`, for too few."""
    if len(train) < NUM_NEIGHBOURS:
        raise ValueError(
            f"{setting}: {NUM_NEIGHBOURS} neighbours vote; training needs as many images, and has {len(train)}"
        )
    chosen = balanced_subset(train, count, stream="neighbours")
    rule = f"{NUM_NEIGHBOURS} neighbours vote, and there are {len(chosen)} training images"
    check(len(chosen) >= NUM_NEIGHBOURS, setting, count, rule)
    return chosen
