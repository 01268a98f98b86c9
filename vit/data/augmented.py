"""Training steps whose images are augmented on the device, those of several micro-batches at once where they are small.

Augmentation starts thousands of small operations, whatever the number of images. What it does to a sample does not
depend on the batch that the sample came in (`augment`), so neighbours can share them: 512 images of 32 pixels take
about as long as 230 in batches of 128.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vit.data.augment import Augment
from vit.data.loading import Step, TrainBatch, TrainLoader

_VALUES = 2**21
"""Augmented at a time, of all images together: 8 MiB, which the caches hold or nearly so."""
_IMAGES = 512


@dataclass(frozen=True)
class AugmentedBatch:
    """One micro-batch on the device."""

    images: Tensor
    """Normalised float32 (b, 3, H, W)."""
    targets: Tensor
    """float32 (b, k), each row's sum 1."""
    positions: Tensor
    """int64 (b,), place in the epoch's order."""
    weights: Tensor
    """float32 (b,), as in `TrainBatch`."""


class AugmentedLoader:
    """The steps of a `TrainLoader`; `batch.to(device)` gives the augmented batch."""

    def __init__(self, loader: TrainLoader, augment: Augment, *, seed: int) -> None:
        self.loader = loader
        self.augment = augment
        self._seed = seed

    @property
    def steps_per_epoch(self) -> int:
        return self.loader.steps_per_epoch

    @property
    def samples_per_epoch(self) -> int:
        return self.loader.samples_per_epoch

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Step]:
        """As `TrainLoader.epoch`; small steps are read some ahead."""
        height, width = self.augment.image_size(epoch)
        most = min(_IMAGES, _VALUES // (3 * height * width))
        for steps in _neighbours(self.loader.epoch(epoch, start_step), most):
            batches = [batch for step in steps for batch in step.batches]
            pending = (
                _Pending(self, epoch, group, place) for group in _cut(batches, most) for place in range(len(group))
            )
            for step in steps:
                yield replace(step, batches=[next(pending) for _ in step.batches])

    def augmented(self, batches: list[TrainBatch], epoch: int, device: torch.device | str) -> list[AugmentedBatch]:
        """The batches as one. No sample may be in two of them."""
        joined = _joined(batches).to(device)
        images, targets = self.augment(joined, seed=self._seed, epoch=epoch)
        parts = (images, targets, joined.positions, joined.weights)
        sizes = [len(batch.labels) for batch in batches]
        return [AugmentedBatch(*part) for part in zip(*(tensor.split(sizes) for tensor in parts), strict=True)]


class _Group:
    """Batches that are augmented when one of them is first asked for."""

    def __init__(self, batches: list[TrainBatch]) -> None:
        self.batches = batches
        self.augmented: list[AugmentedBatch] = []

    def __len__(self) -> int:
        return len(self.batches)


class _Pending:
    """A `TrainBatch` on its way."""

    def __init__(self, loader: AugmentedLoader, epoch: int, group: _Group, place: int) -> None:
        self._loader, self._epoch, self._group, self._place = loader, epoch, group, place

    def to(self, device: torch.device | str) -> AugmentedBatch:
        group = self._group
        if not group.augmented:
            group.augmented = self._loader.augmented(group.batches, self._epoch, device)
        return group.augmented[self._place]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group.batches[self._place], name)


def _neighbours(steps: Iterable[Step], most: int) -> Iterator[list[Step]]:
    """Steps that have at most so many images in this process together, or one."""
    group: list[Step] = []
    for step in steps:
        group.append(step)
        if _images(group) + _images([step]) > most:
            yield group
            group = []
    if group:
        yield group


def _images(steps: list[Step]) -> int:
    return sum(len(batch.labels) for step in steps for batch in step.batches)


def _cut(batches: list[TrainBatch], most: int) -> Iterator[_Group]:
    """Neighbouring batches with at most so many images together, or one. A batch that begins again with an image that
    was there, as the stand-in of an empty one does, is not joined.
    """
    group: list[TrainBatch] = []
    for batch in batches:
        fits = sum(len(each.labels) for each in (*group, batch)) <= most
        if group and not (fits and batch.positions[0] > group[-1].positions[-1]):
            yield _Group(group)
            group = []
        group.append(batch)
    yield _Group(group)


def _joined(batches: list[TrainBatch]) -> TrainBatch:
    if len(batches) == 1:
        return batches[0]
    return TrainBatch(*(torch.cat(parts) for parts in zip(*(vars(each).values() for each in batches), strict=True)))
