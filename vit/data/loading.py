"""Batches of uint8 images: an epoch in optimizer steps to train on, each image once to evaluate.

Small sets are decoded once and kept, on a CUDA device if they are small beside it; larger ones stream through workers.
What a step contains depends on (seed, epoch, step) alone, however many processes, micro-batches and workers share the
work. Pixels are augmented elsewhere, on the device (`augment`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vit.config import AugmentConfig, DataConfig, Preprocessing
from vit.data.decoding import BrokenImage
from vit.data.order import StepPlan, epoch_order
from vit.data.splits import Split
from vit.data.streaming import (
    WORTH_WORKERS,
    CanvasDecoder,
    Decoded,
    EvaluationDecoder,
    ImageStream,
    canvas_size,
    decode_all,
    decoded_bytes,
)

_GIB = 2**30
_SHARE_OF_DEVICE = 0.1
"""Of a CUDA device's memory, for images that are kept there."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainBatch:
    """One micro-batch of one process; b images, each with its place in the epoch."""

    images: Tensor
    """uint8 (b, 3, h, w), of the canvas's size."""
    labels: Tensor
    """int64 (b,)"""
    positions: Tensor
    """int64 (b,), place in the epoch's order."""
    indices: Tensor
    """int64 (b,), index in the source."""
    weights: Tensor
    """float32 (b,): 1; 0 for a broken image (all black) and for the stand-in of an empty micro-batch."""
    aspects: Tensor
    """float32 (b,): how much wider the image was than its canvas; width / height where that is square."""

    def to(self, device: torch.device | str) -> TrainBatch:
        return TrainBatch(*(tensor.to(device) for tensor in vars(self).values()))


@dataclass(frozen=True)
class Step:
    """One optimizer step of one process. Its loss, summed over processes: sum(weights * loss) / normalizer."""

    batches: list[Any]
    num_samples: int
    """Of the whole step, over all processes."""
    normalizer: float
    """What the losses' sum is divided by: images, or the tokens of sentences."""


@dataclass(frozen=True)
class EvalBatch:
    """Images uint8 (b, 3, H, W) as `Preprocessing` makes them, labels and indices int64 (b,)."""

    images: Tensor
    labels: Tensor
    indices: Tensor


class _BrokenImages:
    """What to do about images that cannot be decoded: stop, or name each once and count; stop when none is left."""

    def __init__(self, config: DataConfig, num_images: int) -> None:
        self._fatal = config.on_broken_image == "fail"
        self._num_images = num_images
        self.names: set[str] = set()

    def report(self, broken: Iterable[BrokenImage]) -> None:
        for error in broken:
            if self._fatal:
                remedy = "mend or remove it, or pass --data.on_broken_image skip"
                raise ValueError(f"data.on_broken_image: {error.name} cannot be decoded ({error.reason}): {remedy}")
            if error.name not in self.names:
                logger.warning("skipping a broken image: %s (%s)", error.name, error.reason)
            self.names.add(error.name)
            if len(self.names) == self._num_images:
                raise ValueError(
                    f"data.root: none of the {self._num_images} images can be decoded; the last of them is "
                    f"{error.name} ({error.reason})"
                )


class TrainLoader:
    """The epochs of a training split, as one of `world_size` processes sees them.

    Images that are kept lie where `home_of_images` says, for training on `device`; all else is on the CPU. ValueError
    naming `data.batch_size` where it cannot be divided evenly. Nothing is decoded before the first epoch.
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
    ) -> None:
        assert 0 <= rank < world_size
        self.split, self._config, self._seed, self._rank = split, config, seed, rank
        self._device = device
        self._image_size = image_size
        self._repeats = augment.repeats
        self._micro_batches = range(rank, accumulation_steps * world_size, world_size)
        group = augment.mix_group if augment.mixes else 1
        self._length = len(split) if split.epoch_length is None else split.epoch_length
        self._plan = StepPlan(self._length, config.batch_size, accumulation_steps * world_size, group)
        self._broken = _BrokenImages(config, len(split))
        self._kept: Decoded | None = None
        self._stream: ImageStream | None = None

    @property
    def steps_per_epoch(self) -> int:
        return self._plan.num_steps

    @property
    def samples_per_epoch(self) -> int:
        return self._length

    @property
    def smallest_chunk(self) -> int:
        """Images of the smallest micro-batch of any process: one of the last step's."""
        last = self.steps_per_epoch - 1
        return min(len(self._plan.chunk(last, chunk)) for chunk in range(self._plan.num_chunks))

    @property
    def is_kept(self) -> bool:
        """Whether the decoded images are in memory, as they are from the first epoch on where they fit."""
        return self._kept is not None

    @property
    def busy_workers(self) -> int:
        """Processes that decode while an epoch goes on."""
        return 0 if self.is_kept else self._config.workers

    @property
    def num_broken(self) -> int:
        """Broken images met so far by this process, each counted once."""
        return len(self._broken.names)

    @property
    def broken_names(self) -> list[str]:
        """Their names, sorted."""
        return sorted(self._broken.names)

    def recall_broken(self, names: Iterable[str]) -> None:
        """Count the images that were found broken before a run was interrupted."""
        self._broken.names.update(names)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Step]:
        """The steps of an epoch from `start_step` on; those before it are not read.

        ValueError names a broken image where `data.on_broken_image` is 'fail'.
        """
        order = epoch_order(self._seed, epoch, len(self.split), self._repeats, self._length)
        steps = range(start_step, self.steps_per_epoch)
        decoded = self._decode(order[self._held(step, chunk)] for step in steps for chunk in self._micro_batches)
        for step in steps:
            batches = [self._batch(step, chunk, order, next(decoded)) for chunk in self._micro_batches]
            num_images = len(self._plan.positions(step))
            yield Step(batches, num_images, normalizer=float(num_images))

    def _held(self, step: int, chunk: int) -> Tensor:
        """The positions in a chunk; in an empty one the step's first, which stands in with weight 0."""
        positions = self._plan.chunk(step, chunk) or self._plan.positions(step)[:1]
        return torch.arange(positions.start, positions.stop)

    def _decode(self, chunks: Iterator[Tensor]) -> Iterator[Decoded]:
        """One `Decoded` for each chunk of rows of the split."""
        if self._kept is None and self._stream is None:
            self._prepare()
        if self._kept is not None:
            return map(self._kept.select, chunks)
        assert self._stream is not None
        return self._stream.decode(self.split.indices[rows].tolist() for rows in chunks)

    def bytes_on_device(self) -> int:
        """Of the images that an epoch will keep on a CUDA device, for which it looks at some of them."""
        if self._device.type == "cpu":
            return 0
        num_bytes = decoded_bytes(len(self.split), canvas_size(self.split, self._config, self._image_size))
        there = self._keeps(num_bytes) and home_of_images(num_bytes, self._device).type != "cpu"
        return num_bytes if there else 0

    def _keeps(self, num_bytes: int) -> bool:
        return num_bytes <= self._config.cache_gib * _GIB

    def _prepare(self) -> None:
        size = canvas_size(self.split, self._config, self._image_size)
        decoder = CanvasDecoder(self.split.source, size, self._config.interpolation)
        workers = self._config.workers
        num_bytes = decoded_bytes(len(self.split), size)
        if self._keeps(num_bytes):
            report, quiet = self._broken.report, self._rank > 0
            indices = self.split.indices
            kept = decode_all(decoder, indices, workers=workers, report=report, quiet=quiet)
            self._kept = kept.to(home_of_images(num_bytes, self._device))
        else:
            self._stream = ImageStream(decoder, workers)

    def _batch(self, step: int, chunk: int, order: Tensor, decoded: Decoded) -> TrainBatch:
        positions = self._held(step, chunk)
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


def home_of_images(num_bytes: int, device: torch.device) -> torch.device:
    """Where the kept images of a run on `device` lie: there, if it is a CUDA device and they take at most a tenth of
    its memory, so that no step copies any; else with the CPU.
    """
    if device.type != "cuda":
        return torch.device("cpu")
    total = torch.cuda.get_device_properties(device).total_memory
    return device if num_bytes <= _SHARE_OF_DEVICE * total else torch.device("cpu")


class EvalLoader:
    """Every image of a split once, divided among the processes. Small sets are kept for the next pass.

    Iterating raises ValueError naming a broken image where `data.on_broken_image` is 'fail'; else it is left
    out, and a batch of nothing else with it.
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
        self._keeps = decoded_bytes(len(share), preprocessing.image_size) <= config.cache_gib * _GIB
        self._workers = config.workers if len(share) >= WORTH_WORKERS else 0
        self._kept: list[Decoded] | None = None
        self._broken = _BrokenImages(config, len(split))
        self.num_total = len(split)

    @property
    def num_broken(self) -> int:
        """Broken images of this process's share, known after a pass."""
        return len(self._broken.names)

    def __len__(self) -> int:
        """Batches of this process."""
        return len(self._chunks)

    def __iter__(self) -> Iterator[EvalBatch]:
        for indices, decoded in zip(self._chunks, self._decode(), strict=True):
            self._broken.report(decoded.broken.values())
            whole = torch.ones(len(indices), dtype=torch.bool)
            whole[list(decoded.broken)] = False
            if not whole.any():
                continue
            images = decoded.images[whole] if decoded.broken else decoded.images
            yield EvalBatch(images, self.split.source.labels[indices[whole]], indices[whole])

    def _decode(self) -> Iterator[Decoded]:
        if self._kept is not None:
            yield from self._kept
            return
        kept = []
        stream = ImageStream(self._decoder, self._workers)
        for decoded in stream.decode(chunk.tolist() for chunk in self._chunks):
            if self._keeps:  # a copy: what workers send holds on to their shared memory
                kept.append(replace(decoded, images=decoded.images.clone(), aspects=decoded.aspects.clone()))
            yield decoded
        if self._keeps:
            self._kept = kept
