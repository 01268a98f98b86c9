"""Batches for the tests of augmentation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vit.config import AugmentConfig, Preprocessing
from vit.data.augment import Augment
from vit.data.loading import TrainBatch

NUM_CLASSES = 10
PLAIN: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1 / 255, 1 / 255, 1 / 255)}
"""Normalisation that leaves the levels 0 to 255 as they are."""


def random_batch(size: int, side: int | tuple[int, int], *, first_position: int = 0, aspect: float = 1.0) -> TrainBatch:
    """A batch that is a piece of one fixed epoch: image, label and aspect depend on the position."""
    height, width = (side, side) if isinstance(side, int) else side
    positions = torch.arange(first_position, first_position + size)
    images = [
        torch.randint(0, 256, (3, height, width), generator=torch.Generator().manual_seed(int(position)))
        for position in positions
    ]
    return batch_of(torch.stack(images).to(torch.uint8), positions, aspect=aspect)


def batch_of(images: Tensor, positions: Tensor | None = None, *, aspect: float = 1.0) -> TrainBatch:
    if positions is None:
        positions = torch.arange(len(images))
    ones = torch.ones(len(images))
    return TrainBatch(images, positions * 7 % NUM_CLASSES, positions, positions, ones, ones * aspect)


def piece(batch: TrainBatch, start: int, stop: int) -> TrainBatch:
    return TrainBatch(*(tensor[start:stop] for tensor in vars(batch).values()))


def augmented(
    batch: TrainBatch, *, side: int | tuple[int, int], seed: int = 0, epoch: int = 0, **settings: object
) -> tuple[Tensor, Tensor]:
    """Images in levels (not normalised) and targets."""
    image_size = (side, side) if isinstance(side, int) else side
    preprocessing = Preprocessing(image_size=image_size, **PLAIN)
    augment = Augment(AugmentConfig(**settings), preprocessing, NUM_CLASSES)  # type: ignore[arg-type]
    return augment(batch, seed=seed, epoch=epoch)


def coded_images(count: int, height: int, width: int) -> Tensor:
    """uint8 (b, 3, h, w) whose channels are the sample, the row and the column of the pixel."""
    sample = torch.arange(count)[:, None, None].expand(-1, height, width)
    row = torch.arange(height)[:, None].expand(count, -1, width)
    column = torch.arange(width).expand(count, height, -1)
    return torch.stack([sample, row, column], dim=1).to(torch.uint8)
