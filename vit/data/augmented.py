"""Training steps whose images are augmented on the device, for several micro-batches at once where they are small.

Augmentation launches thousands of small operations, whatever the number of images. Its result for a sample does not
depend on the rest of the batch (`augment`), so neighbouring batches can share them: 512 images of 32 pixels take about
as long as 230 in batches of 128.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from vit.data.augment import Augment
from vit.data.loading import Step, TrainBatch, TrainLoader
from vit.data.streaming import PREFETCHED

_MAX_VALUES = {"cpu": 2**21, "cuda": 2**25}
"""Pixel values to augment at a time, by where the images lie. On a CPU 8 MiB in float32, which about fits into its
caches; on a CUDA device, where launching the operations takes the time, 128 MiB.
"""
_MAX_IMAGES = {"cpu": 512, "cuda": 8192}
"""Images to augment at a time, likewise."""
_FIXED_COST = 0.2
"""Share of a full-size step that smaller images do not shorten: launching operations, the optimizer. Of a ViT of width
128 on two quiet cores, steps with images of 16, 20, 24 and 28 pixels took 0.40, 0.50, 0.58 and 0.84 of one with 32
(results/cifar10_full/vit_speedrun_compiled); this says 0.40, 0.51, 0.65 and 0.81.
"""


@dataclass(frozen=True)
class AugmentedBatch:
    """One micro-batch on the device."""

    images: Tensor
    """Normalised float32 (b, 3, H, W), or (b, views, 3, H, W) of several views."""
    targets: Tensor
    """float32 (b, k); a row's sum is 1, or the image's number of labels."""
    positions: Tensor
    """int64 (b,), position in the epoch's order."""
    weights: Tensor
    """float32 (b,), as in `TrainBatch`."""


class AugmentingLoader:
    """The steps of a `TrainLoader`, whose batches are `UnaugmentedBatch`es."""

    def __init__(self, loader: TrainLoader, augment: Augment, *, seed: int) -> None:
        self.loader = loader
        self.augment = augment
        self.max_images_together: int | None = None
        """Images to augment at a time, None: as many as suit where they lie; a micro-batch is never divided."""
        self.steps_together = 1
        """Steps whose images are augmented at once, of the group that was read last; an epoch's last is smaller."""
        self._seed = seed

    @property
    def steps_per_epoch(self) -> int:
        return self.loader.steps_per_epoch

    @property
    def samples_per_epoch(self) -> int:
        return self.loader.samples_per_epoch

    def cost(self, epochs: int) -> float:
        """In epochs of images of the model's size; of a smaller one's cost, all but `_FIXED_COST` goes by its area."""
        height, width = self.augment.preprocessing.image_size
        sizes = self.augment.epochs_by_size(epochs)
        areas = sum(count * h * w for (h, w), count in sizes.items()) / (height * width)
        return _FIXED_COST * epochs + (1 - _FIXED_COST) * areas

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Step]:
        """As `TrainLoader.epoch`, but small steps are read in advance."""
        steps = self.loader.epoch(epoch, start_step)
        for step in steps:
            max_images = self._max_images(step.batches[0], epoch)
            num_images = sum(len(batch.labels) for batch in step.batches)
            group = [step, *islice(steps, max(0, max_images // num_images - 1))]
            self.steps_together = len(group)
            batches = [batch for each in group for batch in each.batches]
            unaugmented = (
                UnaugmentedBatch(shared, index)
                for shared in _group_neighbours(batches, max_images, partial(self.augment_together, epoch=epoch))
                for index in range(len(shared.batches))
            )
            for each in group:
                yield replace(each, batches=[next(unaugmented) for _ in each.batches])

    def augment_together(
        self, batches: list[TrainBatch], device: torch.device | str, *, epoch: int
    ) -> list[AugmentedBatch]:
        """Augment the batches as one and split the result again. No sample may be in two of them."""
        joined = batches[0]
        if len(batches) > 1:
            fields = zip(*(vars(each).values() for each in batches), strict=True)
            joined = TrainBatch(*(torch.cat(parts) for parts in fields))
        joined = joined.to(device)
        with _fewer_threads(self.loader.busy_workers):
            images, targets = self.augment(joined, seed=self._seed, epoch=epoch)
        parts = (images, targets, joined.positions, joined.weights)
        sizes = [len(batch.labels) for batch in batches]
        return [AugmentedBatch(*part) for part in zip(*(tensor.split(sizes) for tensor in parts), strict=True)]

    def _max_images(self, batch: TrainBatch, epoch: int) -> int:
        """Images to augment together: limited by their size, before and after, and by what workers have prefetched."""
        height, width = self.augment.image_size(epoch)
        values = max(self.augment.views * 3 * height * width, batch.images[0].numel())
        place = "cuda" if batch.images.is_cuda else "cpu"
        most = _MAX_IMAGES[place] if self.max_images_together is None else self.max_images_together
        limit = min(most, _MAX_VALUES[place] // values)
        workers = self.loader.busy_workers
        return min(limit, workers * PREFETCHED * len(batch.labels)) if workers else limit


@dataclass
class _SharedAugmentation:
    """Neighbouring batches that are augmented together, when the first of them is requested."""

    batches: list[TrainBatch]
    augment: Callable[[list[TrainBatch], torch.device | str], list[AugmentedBatch]]
    augmented: dict[int, AugmentedBatch] = field(default_factory=dict)
    """Results that have not been requested yet, by index among the batches."""


@dataclass(frozen=True)
class UnaugmentedBatch:
    """A micro-batch as it was read, where the loader keeps its images; its neighbours may be augmented with it."""

    _shared: _SharedAugmentation
    _index: int

    @property
    def indices(self) -> Tensor:
        """int64 (b,), as in `TrainBatch`."""
        return self._shared.batches[self._index].indices

    def augmented(self, device: torch.device | str) -> AugmentedBatch:
        """Copy to the device and augment, unless a neighbour's call has done so. The result is not kept."""
        shared = self._shared
        if self._index not in shared.augmented:
            shared.augmented = dict(enumerate(shared.augment(shared.batches, device)))
        return shared.augmented.pop(self._index)


@contextmanager
def _fewer_threads(workers: int) -> Iterator[None]:
    """Use one thread fewer for each worker; the result does not depend on it."""
    # threads wait for each other at every operation, and so all of them for one whose core a worker uses
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads - workers))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _group_neighbours(
    batches: list[TrainBatch],
    max_images: int,
    augment: Callable[[list[TrainBatch], torch.device | str], list[AugmentedBatch]],
) -> Iterator[_SharedAugmentation]:
    """Group neighbouring batches of at most `max_images` in all, but at least one batch."""
    group: list[TrainBatch] = []
    for batch in batches:
        fits = sum(len(each.labels) for each in (*group, batch)) <= max_images
        # the placeholder of an empty micro-batch repeats an image: a group holds every image once
        if group and not (fits and batch.positions[0] > group[-1].positions[-1]):
            yield _SharedAugmentation(group, augment)
            group = []
        group.append(batch)
    yield _SharedAugmentation(group, augment)
