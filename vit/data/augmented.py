"""Training steps whose images are augmented on the device, those of several micro-batches at once where they are small.

Augmentation starts thousands of small operations, whatever the number of images. What it does to a sample does not
depend on the batch that the sample came in (`augment`), so neighbours can share them: 512 images of 32 pixels take
about as long as 230 in batches of 128.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from vit.data.augment import Augment
from vit.data.loading import Step, TrainBatch, TrainLoader
from vit.data.streaming import PREFETCHED

_VALUES = 2**21
"""Augmented at a time, of all images together: 8 MiB in float32, which the caches hold or nearly so."""


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
        self.most_images = 512
        """Augmented at a time; a micro-batch is never divided."""
        self._seed = seed

    @property
    def steps_per_epoch(self) -> int:
        return self.loader.steps_per_epoch

    @property
    def samples_per_epoch(self) -> int:
        return self.loader.samples_per_epoch

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Step]:
        """As `TrainLoader.epoch`; small steps are read some ahead."""
        steps = self.loader.epoch(epoch, start_step)
        for step in steps:
            most = self._most(step.batches[0], epoch)
            group = [step, *islice(steps, max(0, most // _images(step) - 1))]
            batches = [batch for each in group for batch in each.batches]
            pending = (_Pending(self, epoch, each, place) for each in _cut(batches, most) for place in range(len(each)))
            for each in group:
                yield replace(each, batches=[next(pending) for _ in each.batches])

    def augmented(self, batches: list[TrainBatch], epoch: int, device: torch.device | str) -> list[AugmentedBatch]:
        """The batches as one. No sample may be in two of them."""
        joined = _joined(batches).to(device)
        with _leaving_cores(self.loader.busy_workers):
            images, targets = self.augment(joined, seed=self._seed, epoch=epoch)
        parts = (images, targets, joined.positions, joined.weights)
        sizes = [len(batch.labels) for batch in batches]
        return [AugmentedBatch(*part) for part in zip(*(tensor.split(sizes) for tensor in parts), strict=True)]

    def _most(self, batch: TrainBatch, epoch: int) -> int:
        """Images to be augmented together: as many as stay small, before and after, and as workers have ready."""
        height, width = self.augment.image_size(epoch)
        values = max(3 * height * width, batch.images[0].numel())
        most = min(self.most_images, _VALUES // values)
        workers = self.loader.busy_workers
        return min(most, workers * PREFETCHED * len(batch.labels)) if workers else most


class _Group:
    """Batches that are augmented when one of them is first asked for, and then given out once each."""

    def __init__(self, batches: list[TrainBatch]) -> None:
        self.batches = batches
        self.augmented: dict[int, AugmentedBatch] = {}

    def __len__(self) -> int:
        return len(self.batches)


class _Pending:
    """A `TrainBatch` on its way."""

    def __init__(self, loader: AugmentedLoader, epoch: int, group: _Group, place: int) -> None:
        self._loader, self._epoch, self._group, self._place = loader, epoch, group, place

    def to(self, device: torch.device | str) -> AugmentedBatch:
        group = self._group
        if self._place not in group.augmented:
            group.augmented = dict(enumerate(self._loader.augmented(group.batches, self._epoch, device)))
        return group.augmented.pop(self._place)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group.batches[self._place], name)


@contextmanager
def _leaving_cores(workers: int) -> Iterator[None]:
    """One thread less for each worker: threads wait for each other at every operation, and all for one whose core a
    worker has. The result does not depend on them.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads - workers))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _images(step: Step) -> int:
    return sum(len(batch.labels) for batch in step.batches)


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
