"""Decoding chunks of images in a given order, in this process or in workers, with the same result.

This module also chooses the canvas, the common size that training images are decoded to.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vit.config import DataConfig, Interpolation, Preprocessing
from vit.data.decoding import BrokenImage, FailedRead
from vit.data.preprocessing import resize_and_crop, resized, to_tensor
from vit.data.splits import ImageSource, Split
from vit.data.workers import Workers, dead_workers_named, note_decoding
from vit.progress import progress_bar

_PROBED = 256
"""Number of images read to find a common size."""
_CHUNK = 256
MIN_IMAGES_FOR_WORKERS = 2048
"""A single pass over fewer images ends before workers have started."""
PREFETCHED = 2
"""Number of chunks that each worker decodes in advance."""
_SECONDS_BEFORE_PROGRESS = 2.0


@dataclass(frozen=True)
class Decoded:
    """Images uint8 (b, 3, h, w), aspects float32 (b,), and the errors of broken images by row (their pixels are 0)."""

    images: Tensor
    aspects: Tensor
    broken: dict[int, BrokenImage | FailedRead] = field(default_factory=dict)

    def select(self, rows: Tensor) -> Decoded:
        """Select images by `rows` int64 (b,)."""
        broken = {}
        if self.broken:
            broken = {new: self.broken[row] for new, row in enumerate(rows.tolist()) if row in self.broken}
        rows = rows.to(self.images.device)
        return Decoded(self.images.index_select(0, rows), self.aspects.index_select(0, rows), broken)

    def to(self, device: torch.device) -> Decoded:
        return Decoded(self.images.to(device), self.aspects.to(device), self.broken)


class Decoder(ABC, Dataset[Decoded]):
    """A data set of chunks: `decoder[indices]` decodes these images of the source to (height, width)."""

    def __init__(self, source: ImageSource, size: tuple[int, int]) -> None:
        self.source = source
        self.size = size

    @abstractmethod
    def decode(self, index: int) -> tuple[Tensor, float]:
        """Decode one image to uint8 (3, h, w), and its aspect."""

    def __getitem__(self, indices: list[int]) -> Decoded:
        images = torch.zeros(len(indices), 3, *self.size, dtype=torch.uint8)
        aspects = [1.0] * len(indices)
        broken: dict[int, BrokenImage | FailedRead] = {}
        for row, (index, image) in enumerate(zip(indices, images, strict=True)):
            note_decoding(index)
            try:
                pixels, aspects[row] = self.decode(index)
            except (BrokenImage, FailedRead) as error:  # in a worker, torch would wrap the latter in its traceback
                broken[row] = error
            else:
                image.copy_(pixels)
        note_decoding(None)
        return Decoded(images, torch.tensor(aspects), broken)


class CanvasDecoder(Decoder):
    """Decodes the whole image, squashed to the canvas; training crops are taken from it.

    The aspect is the image's width / height relative to the canvas's.
    """

    def __init__(
        self, source: ImageSource, size: tuple[int, int], interpolation: Interpolation, *, antialias: bool = True
    ) -> None:
        super().__init__(source, size)
        self.interpolation = interpolation
        self.antialias = antialias

    def decode(self, index: int) -> tuple[Tensor, float]:
        height, width = self.size
        smallest = (2 * width, 2 * height) if self.antialias else None  # a reduced scale averages pixels too
        image = self.source.read(index, smallest=smallest)
        if image.size == (width, height):
            return to_tensor(image), 1.0
        aspect = (image.width / image.height) / (width / height)
        return resized(image, self.size, self.interpolation, antialias=self.antialias), aspect


class EvaluationDecoder(Decoder):
    """Decodes an image and applies the resize and crop of `preprocessing`."""

    def __init__(self, source: ImageSource, preprocessing: Preprocessing) -> None:
        super().__init__(source, preprocessing.image_size)
        self.preprocessing = preprocessing

    def decode(self, index: int) -> tuple[Tensor, float]:
        return resize_and_crop(self.source.read(index), self.preprocessing), 1.0


def canvas_size(split: Split, config: DataConfig, image_size: tuple[int, int]) -> tuple[int, int]:
    """Choose the (height, width) that training images are decoded to.

    A square of `data.canvas_size`, if set. Else a square of 256/224 of the model's longer side, or the images' own
    size, without resampling, if all probed images share one that fits into this square.
    """
    if config.canvas_size is not None:
        return config.canvas_size, config.canvas_size
    side = round(256 / 224 * max(image_size))
    shared = _shared_size(split)
    if shared is not None and max(shared) <= side:
        return shared
    return side, side


def _shared_size(split: Split) -> tuple[int, int] | None:
    """The (height, width) shared by a sample of evenly spaced images; others that differ are squashed to it."""
    sizes = set()
    for row in range(0, len(split), max(1, len(split) // _PROBED)):
        try:
            image = split.source.read(int(split.indices[row]))
        except BrokenImage:
            continue
        sizes.add((image.height, image.width))
        if len(sizes) > 1:
            return None
    return sizes.pop() if sizes else None


def decoded_bytes(num_images: int, size: tuple[int, int]) -> int:
    return num_images * 3 * size[0] * size[1]


class ImageStream:
    """Decodes chunks in order, some in advance. Workers are started once and kept for the next pass."""

    def __init__(self, decoder: Decoder, workers: int) -> None:
        self._decoder = decoder
        self._chunks = _Chunks()
        self._loader: DataLoader[Decoded] | None = None
        self._pass: Iterator[Decoded] | None = None
        self._number = 0
        self._workers: Workers | None = None
        if workers:
            self._workers = Workers(workers, decoder.source.name, self.close)
            self._loader = DataLoader(
                decoder,
                batch_size=None,
                sampler=self._chunks,
                num_workers=workers,
                collate_fn=_identity,  # not a lambda, which spawned workers could not unpickle
                worker_init_fn=self._workers.begin,
                persistent_workers=True,
                prefetch_factor=PREFETCHED,
                generator=torch.Generator(),  # otherwise every pass draws from torch's global generator
            )

    def decode(self, chunks: Iterable[list[int]]) -> Iterator[Decoded]:
        """Yield one `Decoded` for each chunk of indices, in order. With workers, a new pass ends the one before it."""
        if self._loader is None:
            yield from map(self._decoder.__getitem__, chunks)
            return
        self._pass = None
        self._number = number = self._number + 1
        self._chunks.chunks = chunks
        with warnings.catch_warnings(), dead_workers_named():
            # Python advises against fork in general; torch's workers take no lock that other threads may hold.
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            self._pass = iter(self._loader)
        # until the next pass, which the loader gives the same iterator, or `close`
        while self._pass is not None and number == self._number:
            with dead_workers_named():
                decoded = next(self._pass, None)
            if decoded is None:
                return
            yield decoded

    def close(self) -> None:
        """Stop the workers, which torch does when their loader is deleted."""
        if self._workers is not None:
            self._workers.end()
        self._pass = self._loader = None

    def __del__(self) -> None:
        self.close()


class _Chunks:
    """A sampler whose chunks are set before each pass, because the loader and its workers outlive a pass."""

    chunks: Iterable[list[int]] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.chunks)


def _identity(decoded: Any) -> Any:
    return decoded


def decode_all(
    decoder: Decoder,
    indices: Tensor,
    *,
    workers: int,
    report: Callable[[Iterable[BrokenImage | FailedRead]], None],
    quiet: bool,
) -> Decoded:
    """Decode all images into one tensor, with a progress bar on standard error if it takes long.

    `report` receives broken images as they occur, and may raise to stop.
    """
    images = torch.empty(len(indices), 3, *decoder.size, dtype=torch.uint8)
    aspects = torch.empty(len(indices))
    broken: dict[int, BrokenImage | FailedRead] = {}
    stream = ImageStream(decoder, workers if len(indices) >= MIN_IMAGES_FOR_WORKERS else 0)
    first, delay = 0, _SECONDS_BEFORE_PROGRESS
    with progress_bar("decoding", len(indices), unit="img", delay=delay, quiet=quiet) as bar:
        for decoded in stream.decode(chunk.tolist() for chunk in indices.split(_CHUNK)):
            last = first + len(decoded.images)
            images[first:last], aspects[first:last] = decoded.images, decoded.aspects
            report(decoded.broken.values())
            broken |= {first + row: error for row, error in decoded.broken.items()}
            bar.update(last - first)
            first = last
    return Decoded(images, aspects, broken)
