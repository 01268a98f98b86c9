"""The interface of a source of images, and its splits: a class-balanced validation set, nested subsets for training.

Every choice is a hash of (`data.split_seed` or `data.subset_seed`, key of the image), so neither the training seed, the
number of workers nor a library's shuffling can move an image from one split to another. The key is the file's name, so
that an image stays in its part when others are added or removed, and the index where images are not files.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.config import DataConfig
from vit.data.decoding import MissingImages
from vit.data.file_source import FileSource
from vit.randomness import SampleRandom


class ImageSource(Protocol):
    """Numbered images. `labels` is int64 (n,), indices into `class_names`, or, where an image has any number of labels,
    uint8 (n, k) of 0 and 1.
    """

    @property
    def class_names(self) -> list[str]: ...

    @property
    def labels(self) -> Tensor: ...

    def __len__(self) -> int: ...

    def read(self, index: int, *, smallest: tuple[int, int] | None = None) -> Image.Image:
        """Decode an image to RGB; BrokenImage if that fails.

        A source may decode at a reduced scale where that is faster, but not below `smallest` (width, height).
        """

    def name(self, index: int) -> str:
        """A name by which a person finds the image, the same on every machine."""


@dataclass(frozen=True)
class Split:
    """A subset of a source's images: `indices` int64 (n,), ascending."""

    source: ImageSource
    indices: Tensor
    epoch_length: int | None = None
    """Number of images in a training epoch; None: each image once."""

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def labels(self) -> Tensor:
        return self.source.labels[self.indices]


def keys_of(source: ImageSource) -> Tensor | None:
    """Hashes of the images' file names, int64 (n,), which decide their parts; None: images are not files."""
    if not isinstance(source, FileSource):
        return None
    digests = (hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8) for name in source.files)
    return torch.from_numpy(np.frombuffer(b"".join(each.digest() for each in digests), dtype="<i8").astype(np.int64))


def stratified(labels: Tensor, fraction: float, *, seed: int, stream: str, keys: Tensor | None = None) -> Tensor:
    """A mask (n,) of a class-balanced part: the first `fraction` of every class in hashed order, at least one image.

    `keys` int64 (n,) are hashed; None: the indices 0 … n-1. The part for a smaller fraction is a subset of that for a
    larger one.
    """
    keys = torch.arange(len(labels)) if keys is None else keys
    hashes = SampleRandom.at(seed, 0, keys).fork(stream).state
    order = torch.from_numpy(np.lexsort((hashes.numpy(), labels.numpy())))
    counts = torch.bincount(labels)
    starts = counts.cumsum(0) - counts
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(labels)) - starts[labels[order]]
    quotas = (counts * fraction + 0.5).floor().to(torch.int64).clamp(min=1)
    return ranks < quotas[labels]


def balanced_subset(split: Split, num_images: int | None, *, stream: str) -> Split:
    """About `num_images` images, always the same ones for a `stream`; None: all images.

    Classes are balanced where an image has one.
    """
    if num_images is None or num_images >= len(split):
        return split
    labels = split.labels if split.labels.dim() == 1 else torch.zeros(len(split), dtype=torch.int64)
    chosen = stratified(labels, num_images / len(split), seed=0, stream=stream)
    return Split(split.source, split.indices[chosen])


def split_validation(source: ImageSource, config: DataConfig) -> tuple[Split, Split]:
    """Divide a source into (train, validation) by `data.val_fraction`, `split_seed`, `fraction`, `subset_seed`.

    Both have at least one image of every class. MissingImages names a class with fewer than two.
    """
    labels = source.labels
    counts = torch.bincount(labels, minlength=len(source.class_names))
    rarest = int(counts.argmin())
    if counts[rarest] < 2:
        raise MissingImages(
            f"data.root: class {source.class_names[rarest]!r} has {int(counts[rarest])} training images; "
            "every class needs at least 2, one to train on and one for validation"
        )
    keys = keys_of(source)
    is_val = stratified(labels, config.val_fraction, seed=config.split_seed, stream="validation", keys=keys)
    # a class without training images gets its last validation image back
    for label in torch.nonzero(torch.bincount(labels[~is_val], minlength=len(counts)) == 0).flatten().tolist():
        is_val[torch.nonzero(labels == label)[-1]] = False
    train = training_subset(source, torch.nonzero(~is_val).flatten(), config, keys)
    return train, Split(source, torch.nonzero(is_val).flatten())


def training_subset(source: ImageSource, left: Tensor, config: DataConfig, keys: Tensor | None) -> Split:
    """`data.fraction` of the images with the indices `left`, which are not for validation; `keys` as of `keys_of`."""
    if config.fraction == 1:  # the rest takes a second for a million images
        return Split(source, left)
    own = None if keys is None else keys[left]
    is_chosen = stratified(source.labels[left], config.fraction, seed=config.subset_seed, stream="subset", keys=own)
    return Split(source, left[is_chosen], len(left) if config.epoch_length == "whole_set" else None)


def fingerprint(split: Split) -> str:
    """A hash of 12 hexadecimal digits of a split's images, their names, labels and class names."""
    digest = hashlib.sha256("\n".join(split.source.class_names).encode())
    for index, label in zip(split.indices.tolist(), split.labels.tolist(), strict=True):
        line = f"\n{index}\t{label}\t{split.source.name(index)}"
        digest.update(line.encode("utf-8", "surrogateescape"))  # names are bytes to the system
    return digest.hexdigest()[:12]
