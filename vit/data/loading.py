"""Batches of uint8 images: an epoch in optimizer steps for training, each image once for evaluation.

Small sets are decoded once and cached, on a CUDA device if they take little of its memory; larger ones stream through
workers. The content of a step depends on (seed, epoch, step) alone, whatever the number of processes, micro-batches and
workers. Augmentation happens later, on the device (`augment`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vit.config import AugmentConfig, DataConfig, Preprocessing
from vit.data.decoding import BrokenImage, FailedRead
from vit.data.order import StepPlan, balanced_order, epoch_order
from vit.data.splits import Split
from vit.data.streaming import (
    MIN_IMAGES_FOR_WORKERS,
    CanvasDecoder,
    Decoded,
    EvaluationDecoder,
    ImageStream,
    canvas_size,
    decode_all,
    decoded_bytes,
)

_GIB = 2**30
_DEVICE_FRACTION = 0.1
"""The largest part of a CUDA device's memory that cached images may take."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainBatch:
    """One micro-batch of one process: b images, each with its position in the epoch."""

    images: Tensor
    """uint8 (b, 3, h, w), of the size of the canvas."""
    labels: Tensor
    """int64 (b,), or uint8 (b, k) where an image has any number of labels."""
    positions: Tensor
    """int64 (b,), position in the epoch's order."""
    indices: Tensor
    """int64 (b,), index in the source."""
    weights: Tensor
    """float32 (b,): 1; 0 for a broken image (all black) and for the placeholder of an empty micro-batch."""
    aspects: Tensor
    """float32 (b,): the original's width / height relative to the canvas's."""

    def to(self, device: torch.device | str) -> TrainBatch:
        return TrainBatch(*(tensor.to(device) for tensor in vars(self).values()))


@dataclass(frozen=True)
class Step:
    """One optimizer step of one process. The step's loss is sum(weights * losses) / normalizer over all processes."""

    batches: list[Any]
    num_samples: int
    """Samples in the step, over all processes."""
    normalizer: float
    """Divisor of the summed losses: the number of images, or of tokens."""


@dataclass(frozen=True)
class EvalBatch:
    """Preprocessed images uint8 (b, 3, H, W), labels and indices int64 (b,)."""

    images: Tensor
    labels: Tensor
    indices: Tensor


class UnreadableImage(ValueError):
    """A broken image where `data.on_broken_image` is 'fail'."""

    def __init__(self, broken: BrokenImage) -> None:
        remedy = "repair or remove it, or pass --data.on_broken_image skip"
        super().__init__(f"data.on_broken_image: {broken.name} cannot be decoded ({broken.reason}): {remedy}")
        self.name = broken.name


class NothingDecoded(ValueError):
    """None of a loader's images can be decoded."""

    def __init__(self, num_images: int, last: BrokenImage) -> None:
        super().__init__(
            f"data.root: none of the {num_images} images can be decoded; the last is {last.name} ({last.reason})"
        )


class _BrokenImages:
    """Handles images that cannot be decoded: raises, or logs and counts each once.

    Raises if all are broken, and for one that the disk did not give (`FailedRead`).
    """

    def __init__(self, config: DataConfig, num_images: int) -> None:
        self._fatal = config.on_broken_image == "fail"
        self._num_images = num_images
        self.names: set[str] = set()

    def report(self, broken: Iterable[BrokenImage | FailedRead]) -> None:
        for error in broken:
            if isinstance(error, FailedRead):
                raise error
            if self._fatal:
                raise UnreadableImage(error)
            if error.name not in self.names:
                logger.warning("skipping a broken image: %s (%s)", error.name, error.reason)
            self.names.add(error.name)
            if len(self.names) == self._num_images:
                raise NothingDecoded(self._num_images, error)


class TrainLoader:
    """The epochs of a training split, for one of `world_size` processes.

    Cached images are on `cache_device(…, device)`, everything else on the CPU. ValueError naming `data.batch_size` if
    it cannot be divided evenly. A last step of fewer than `fewest_in_step` images, or whose micro-batches would have
    fewer than `fewest`, joins the one before. Nothing is decoded before the first epoch.
    """

    def __init__(
        self,
        split: Split,
        config: DataConfig,
        augment: AugmentConfig,
        *,
        image_size: tuple[int, int],
        seed: int,
        device: torch.device,
        accumulation_steps: int = 1,
        rank: int = 0,
        world_size: int = 1,
        fewest: int = 0,
        fewest_in_step: int = 0,
    ) -> None:
        assert 0 <= rank < world_size
        self.split, self._config, self._seed, self._rank = split, config, seed, rank
        self._device = device
        self._image_size = image_size
        self._repeats = augment.repeats
        self._micro_batches = range(rank, accumulation_steps * world_size, world_size)
        group = augment.mix_group if augment.mixes else 1
        self._length = len(split) if split.epoch_length is None else split.epoch_length
        self._plan = StepPlan(
            self._length, config.batch_size, accumulation_steps * world_size, group, fewest, fewest_in_step
        )
        self._broken = _BrokenImages(config, len(split))
        self._cache: Decoded | None = None
        self._stream: ImageStream | None = None

    @property
    def steps_per_epoch(self) -> int:
        return self._plan.num_steps

    @property
    def samples_per_epoch(self) -> int:
        return self._length

    @property
    def smallest_chunk(self) -> int:
        """Number of images in the smallest micro-batch of any process, which is in the last step."""
        last = self.steps_per_epoch - 1
        return min(len(self._plan.chunk(last, chunk)) for chunk in range(self._plan.num_chunks))

    @property
    def is_cached(self) -> bool:
        """True if the decoded images are in memory: from the first epoch on, if they fit."""
        return self._cache is not None

    @property
    def busy_workers(self) -> int:
        """Number of processes that decode during an epoch."""
        return 0 if self.is_cached else self._config.workers

    @property
    def num_broken(self) -> int:
        """Number of broken images found by this process so far, each counted once."""
        return len(self._broken.names)

    @property
    def broken_names(self) -> list[str]:
        """Names of the broken images, sorted."""
        return sorted(self._broken.names)

    def restore_broken(self, names: Iterable[str]) -> None:
        """Count images that were found broken before the run was interrupted."""
        self._broken.names.update(names)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Step]:
        """Yield the steps of an epoch from `start_step` on; earlier ones are not read.

        ValueError names a broken image where `data.on_broken_image` is 'fail'.
        """
        if start_step >= self.steps_per_epoch:  # a run that was stopped after its last step: nothing is decoded
            return
        if self._config.sampling == "balanced":
            order = balanced_order(self._seed, epoch, self.split.labels, self._length)
        else:
            order = epoch_order(self._seed, epoch, len(self.split), self._repeats, self._length)
        steps = range(start_step, self.steps_per_epoch)
        decoded = self._decode(order[self._positions(step, chunk)] for step in steps for chunk in self._micro_batches)
        for step in steps:
            batches = [self._make_batch(step, chunk, order, next(decoded)) for chunk in self._micro_batches]
            num_images = len(self._plan.positions(step))
            yield Step(batches, num_images, normalizer=float(num_images))

    def _positions(self, step: int, chunk: int) -> Tensor:
        """The positions of a chunk; for an empty one the step's first position, a placeholder of weight 0."""
        positions = self._plan.chunk(step, chunk) or self._plan.positions(step)[:1]
        return torch.arange(positions.start, positions.stop)

    @cached_property
    def canvas_size(self) -> tuple[int, int]:
        """The (height, width) that images are decoded to; some are read to choose it."""
        return canvas_size(self.split, self._config, self._image_size)

    def _decode(self, chunks: Iterator[Tensor]) -> Iterator[Decoded]:
        """Yield one `Decoded` for each chunk of rows of the split."""
        if self._cache is None and self._stream is None:
            decoder = CanvasDecoder(
                self.split.source, self.canvas_size, self._config.interpolation, antialias=self._config.antialias
            )
            workers, num_bytes = self._config.workers, decoded_bytes(len(self.split), self.canvas_size)
            if self._fits_cache(num_bytes):
                report, quiet = self._broken.report, self._rank > 0
                decoded = decode_all(decoder, self.split.indices, workers=workers, report=report, quiet=quiet)
                self._cache = decoded.to(cache_device(num_bytes, self._device))
            else:
                self._stream = ImageStream(decoder, workers)
        if self._cache is not None:
            return map(self._cache.select, chunks)
        assert self._stream is not None
        return self._stream.decode(self.split.indices[rows].tolist() for rows in chunks)

    def bytes_on_device(self) -> int:
        """The size of the images that an epoch will cache on a CUDA device; some images are read to find it."""
        if self._device.type == "cpu":
            return 0
        num_bytes = decoded_bytes(len(self.split), self.canvas_size)
        on_device = self._fits_cache(num_bytes) and cache_device(num_bytes, self._device).type != "cpu"
        return num_bytes if on_device else 0

    def _fits_cache(self, num_bytes: int) -> bool:
        return num_bytes <= self._config.cache_gib * _GIB

    def _make_batch(self, step: int, chunk: int, order: Tensor, decoded: Decoded) -> TrainBatch:
        positions = self._positions(step, chunk)
        indices = self.split.indices[order[positions]]
        weights = torch.full(positions.shape, 1.0 if self._plan.chunk(step, chunk) else 0.0)
        weights[list(decoded.broken)] = 0.0
        self._broken.report(decoded.broken.values())
        return TrainBatch(
            images=decoded.images,
            labels=self.split.source.labels[indices],
            positions=positions,
            indices=indices,
            weights=weights,
            aspects=decoded.aspects,
        )


def cache_device(num_bytes: int, device: torch.device) -> torch.device:
    """The device that caches images: `device`, if it is CUDA and they take little of its memory; else the CPU."""
    if device.type != "cuda":  # on a CUDA device no step has to copy images
        return torch.device("cpu")
    total = torch.cuda.get_device_properties(device).total_memory
    return device if num_bytes <= _DEVICE_FRACTION * total else torch.device("cpu")


class EvalLoader:
    """Every image of a split once, divided among the processes. Small sets are cached for the next pass.

    Iterating raises ValueError naming a broken image if `data.on_broken_image` is 'fail'; otherwise broken images, and
    batches without any other image, are skipped.
    """

    def __init__(
        self,
        split: Split,
        preprocessing: Preprocessing,
        config: DataConfig,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        assert 0 <= rank < world_size
        self.split, self.preprocessing = split, preprocessing
        share = split.indices[rank::world_size]
        self._chunks = [chunk for chunk in share.split(config.eval_batch_size) if len(chunk)]
        self._decoder = EvaluationDecoder(split.source, preprocessing)
        self._fits_cache = decoded_bytes(len(share), preprocessing.image_size) <= config.cache_gib * _GIB
        self._workers = config.workers if len(share) >= MIN_IMAGES_FOR_WORKERS else 0
        self._cache: list[Decoded] | None = None
        self._broken = _BrokenImages(config, len(split))
        self.num_total = len(split)

    @property
    def num_broken(self) -> int:
        """Number of broken images in this process's share, known after a pass."""
        return len(self._broken.names)

    def __len__(self) -> int:
        """Number of batches of this process."""
        return len(self._chunks)

    def __iter__(self) -> Iterator[EvalBatch]:
        for indices, decoded in zip(self._chunks, self._decode(), strict=True):
            self._broken.report(decoded.broken.values())
            intact = torch.ones(len(indices), dtype=torch.bool)
            intact[list(decoded.broken)] = False
            if not intact.any():
                continue
            images = decoded.images[intact] if decoded.broken else decoded.images
            yield EvalBatch(images, self.split.source.labels[indices[intact]], indices[intact])

    def _decode(self) -> Iterator[Decoded]:
        if self._cache is not None:
            yield from self._cache
            return
        decoded_batches = []
        stream = ImageStream(self._decoder, self._workers)
        for decoded in stream.decode(chunk.tolist() for chunk in self._chunks):
            if self._fits_cache:  # a copy: tensors from workers keep their shared memory alive
                decoded_batches.append(replace(decoded, images=decoded.images.clone(), aspects=decoded.aspects.clone()))
            yield decoded
        if self._fits_cache:
            self._cache = decoded_batches
