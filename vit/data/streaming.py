"""Decoded chunks of images, in the order asked for: in this process or from workers, one and the same bits.

Owns the canvas (the common size that training images are decoded to) and the worker processes. Knows nothing
of epochs, steps or weights.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from vit.config import DataConfig, Interpolation, Preprocessing
from vit.data.decoding import BrokenImage
from vit.data.preprocessing import PIL_FILTERS, resize_and_crop, to_tensor
from vit.data.sources import ImageSource
from vit.data.splits import Split

_PROBED = 256
"""Images looked at to find out whether all have one size."""
_CHUNK = 256
WORTH_WORKERS = 2048
"""Below this many images a single pass is over before workers have started."""
PREFETCHED = 2
"""Chunks that each worker decodes before they are asked for."""
_SECONDS_BEFORE_PROGRESS = 2.0
_SECONDS_UNTIL_TOLD = 5.0


@dataclass(frozen=True)
class Decoded:
    """Images uint8 (b, 3, h, w), aspects float32 (b,), and why any of them is broken (its pixels are 0)."""

    images: Tensor
    aspects: Tensor
    broken: dict[int, BrokenImage] = field(default_factory=dict)

    def select(self, rows: Tensor) -> Decoded:
        """Those of the images, `rows` int64 (b,)."""
        broken = {}
        if self.broken:
            broken = {place: self.broken[row] for place, row in enumerate(rows.tolist()) if row in self.broken}
        rows = rows.to(self.images.device)
        return Decoded(self.images.index_select(0, rows), self.aspects.index_select(0, rows), broken)

    def to(self, device: torch.device) -> Decoded:
        return Decoded(self.images.to(device), self.aspects.to(device), self.broken)


class Decoder(ABC, Dataset[Decoded]):
    """`decoder[indices]` is those images of the source, decoded to (height, width)."""

    def __init__(self, source: ImageSource, size: tuple[int, int]) -> None:
        self.source = source
        self.size = size

    @abstractmethod
    def decode(self, index: int) -> tuple[Tensor, float]:
        """One image, uint8 (3, h, w), and its aspect."""

    def __getitem__(self, indices: list[int]) -> Decoded:
        images = torch.zeros(len(indices), 3, *self.size, dtype=torch.uint8)
        aspects = [1.0] * len(indices)
        broken = {}
        for place, (index, image) in enumerate(zip(indices, images, strict=True)):
            try:
                pixels, aspects[place] = self.decode(index)
            except BrokenImage as error:
                broken[place] = error
            else:
                image.copy_(pixels)
        return Decoded(images, torch.tensor(aspects), broken)


class CanvasDecoder(Decoder):
    """The whole image, squashed to the canvas unless it has that size. Training cuts its crops out of it.

    The aspect says how much wider the image was than the canvas shows it: width / height where the canvas is
    square.
    """

    def __init__(self, source: ImageSource, size: tuple[int, int], interpolation: Interpolation) -> None:
        super().__init__(source, size)
        self.interpolation = interpolation

    def decode(self, index: int) -> tuple[Tensor, float]:
        height, width = self.size
        image = self.source.read(index, smallest=(2 * width, 2 * height))
        if image.size == (width, height):
            return to_tensor(image), 1.0
        aspect = (image.width / image.height) / (width / height)
        return to_tensor(image.resize((width, height), PIL_FILTERS[self.interpolation])), aspect


class EvaluationDecoder(Decoder):
    """The image as `preprocessing` says."""

    def __init__(self, source: ImageSource, preprocessing: Preprocessing) -> None:
        super().__init__(source, preprocessing.image_size)
        self.preprocessing = preprocessing

    def decode(self, index: int) -> tuple[Tensor, float]:
        return resize_and_crop(self.source.read(index), self.preprocessing), 1.0


def canvas_size(split: Split, config: DataConfig, image_size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) that training images are decoded to.

    `data.canvas_size` squared, where it is set. Else a square of 256/224 of the model's longer side, or the
    images' own size where all that are looked at share one that fits into this square: they stay untouched.
    """
    if config.canvas_size is not None:
        return config.canvas_size, config.canvas_size
    side = round(256 / 224 * max(image_size))
    shared = _shared_size(split)
    if shared is not None and max(shared) <= side:
        return shared
    return side, side


def _shared_size(split: Split) -> tuple[int, int] | None:
    """(height, width) if a spread of images all have it; one that differs after all is squashed to it."""
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


_streams: WeakSet[ImageStream] = WeakSet()


@atexit.register
def _close_streams() -> None:
    """Before Python's own exit, which would wait for ever for workers that ignore its SIGTERM."""
    for stream in list(_streams):
        stream.close()


class ImageStream:
    """Decodes chunk after chunk, some ahead of need. Workers are started once and kept for the next pass."""

    def __init__(self, decoder: Decoder, workers: int) -> None:
        self._decoder = decoder
        self._chunks = _Chunks()
        self._loader: DataLoader[Decoded] | None = None
        self._pass: Iterator[Decoded] | None = None
        self._closing = torch.zeros(1, dtype=torch.uint8).share_memory_()
        if workers:
            _streams.add(self)
            self._loader = DataLoader(
                decoder,
                batch_size=None,
                sampler=self._chunks,
                num_workers=workers,
                collate_fn=_unchanged,
                worker_init_fn=partial(_obey_only_the_parent, self._closing),
                persistent_workers=True,
                prefetch_factor=PREFETCHED,
                generator=torch.Generator(),  # else every pass draws from torch's global generator
            )

    def decode(self, chunks: Iterable[list[int]]) -> Iterator[Decoded]:
        """One `Decoded` a chunk of indices, in order. A new pass ends the one before it."""
        if self._loader is None:
            yield from map(self._decoder.__getitem__, chunks)
            return
        self._pass = None
        self._chunks.chunks = chunks
        with warnings.catch_warnings(), _dead_workers_named():
            # Python's general advice against fork; torch's workers call nothing that other threads may hold.
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            self._pass = iter(self._loader)
        while (decoded := self._next()) is not None:
            yield decoded

    def _next(self) -> Decoded | None:
        with _dead_workers_named():
            return None if self._pass is None else next(self._pass, None)

    def close(self) -> None:
        """Stop the workers: torch does so when nothing refers to their loader any more, or by SIGTERM."""
        self._closing.fill_(1)
        self._pass = self._loader = None

    def __del__(self) -> None:
        self.close()


@contextmanager
def _dead_workers_named() -> Iterator[None]:
    """A worker may be killed while it hands a chunk over. The system tells torch a moment later, whose handler raises
    wherever this process is: better here, with the worker's name, than while the broken connection is printed.
    """
    try:
        yield
    except (ConnectionError, EOFError):
        time.sleep(_SECONDS_UNTIL_TOLD)
        raise


class _Chunks:
    """What a pass decodes, said anew before each: the loader and its workers outlive a pass."""

    chunks: Iterable[list[int]] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.chunks)


def _unchanged(decoded: Any) -> Any:
    return decoded


def _obey_only_the_parent(closing: Tensor, worker: int) -> None:  # noqa: ARG001
    """A signal to the whole process group must not tear a worker from a parent that is about to save.

    SIGTERM is obeyed once the parent has said, through the shared `closing`, that it is over.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0) if closing.item() else None)


def decode_all(
    decoder: Decoder,
    indices: Tensor,
    *,
    workers: int,
    report: Callable[[Iterable[BrokenImage]], None],
    quiet: bool,
) -> Decoded:
    """All the images as one tensor, with a progress bar on standard error where it takes long.

    `report` is told of broken images as they are met, and may stop the work by raising.
    """
    images = torch.empty(len(indices), 3, *decoder.size, dtype=torch.uint8)
    aspects = torch.empty(len(indices))
    broken: dict[int, BrokenImage] = {}
    stream = ImageStream(decoder, workers if len(indices) >= WORTH_WORKERS else 0)
    bar = tqdm(total=len(indices), desc="decoding", unit="img", delay=_SECONDS_BEFORE_PROGRESS, disable=quiet)
    first = 0
    with bar:
        for decoded in stream.decode(chunk.tolist() for chunk in indices.split(_CHUNK)):
            last = first + len(decoded.images)
            images[first:last], aspects[first:last] = decoded.images, decoded.aspects
            report(decoded.broken.values())
            broken |= {first + place: error for place, error in decoded.broken.items()}
            bar.update(last - first)
            first = last
    return Decoded(images, aspects, broken)
