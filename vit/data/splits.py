"""Which images of a source are used for what: class-balanced validation cut and nested subsets.

Every choice is a hash of (`data.split_seed` or `data.subset_seed`, index in the source), so neither the training seed,
the number of workers nor a library's shuffling can move an image from one side to the other. Knows no pixels.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vit.config import DataConfig
from vit.randomness import SampleRandom

if TYPE_CHECKING:
    from vit.data.sources import ImageSource


@dataclass(frozen=True)
class Split:
    """Some images of a source: `indices`, int64 (n,), ascending."""

    source: ImageSource
    indices: Tensor
    epoch_length: int | None = None
    """How many images an epoch of training shows; None: each once."""

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def labels(self) -> Tensor:
        return self.source.labels[self.indices]


def stratified(labels: Tensor, fraction: float, *, seed: int, stream: str) -> Tensor:
    """Mask (n,) of a class-balanced part: of every class the first `fraction` in hashed order, at least one.

    The hash is of the place, 0 … n-1. A smaller fraction's part lies inside a larger one's.
    """
    keys = SampleRandom.at(seed, 0, torch.arange(len(labels))).fork(stream).state
    order = torch.from_numpy(np.lexsort((keys.numpy(), labels.numpy())))
    counts = torch.bincount(labels)
    starts = counts.cumsum(0) - counts
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(labels)) - starts[labels[order]]
    quotas = (counts * fraction + 0.5).floor().to(torch.int64).clamp(min=1)
    return ranks < quotas[labels]


def cut(source: ImageSource, config: DataConfig) -> tuple[Split, Split]:
    """(train, validation) of a training source by `data.val_fraction`, `split_seed`, `fraction`, `subset_seed`.

    Validation has at least one image of every class; so has training, or ValueError names the class.
    """
    labels = source.labels
    counts = torch.bincount(labels, minlength=len(source.class_names))
    rarest = int(counts.argmin())
    if counts[rarest] < 2:
        raise ValueError(
            f"data.root: class {source.class_names[rarest]!r} has {int(counts[rarest])} training images; "
            "every class needs at least 2, one to train on and one for validation"
        )
    is_val = stratified(labels, config.val_fraction, seed=config.split_seed, stream="validation")
    left = _keep_one(labels, is_val)
    is_chosen = stratified(labels[left], config.fraction, seed=config.subset_seed, stream="subset")
    val = torch.ones(len(labels), dtype=torch.bool)
    val[left] = False
    epoch_length = len(left) if config.epoch_length == "whole_set" else None
    return Split(source, left[is_chosen], epoch_length), Split(source, torch.nonzero(val).flatten())


def _keep_one(labels: Tensor, is_val: Tensor) -> Tensor:
    """Indices that validation leaves to training; a class that it took whole gives its last image back."""
    is_left = ~is_val
    missing = torch.bincount(labels[is_left], minlength=int(labels.max()) + 1) == 0
    for label in torch.nonzero(missing).flatten().tolist():
        is_left[torch.nonzero(labels == label)[-1]] = True
    return torch.nonzero(is_left).flatten()


def fingerprint(split: Split) -> str:
    """12 hexadecimal digits that change with the images chosen, their names, labels or class names."""
    digest = hashlib.sha256("\n".join(split.source.class_names).encode())
    for index, label in zip(split.indices.tolist(), split.labels.tolist(), strict=True):
        digest.update(f"\n{index}\t{label}\t{split.source.name(index)}".encode())
    return digest.hexdigest()[:12]
