"""Minimal loader and models for the tests of evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from vit.config import Preprocessing


class Loader:
    """Images whose first pixel is their index; process `rank` has every `world_size`-th of them."""

    def __init__(
        self, num: int, *, batch_size: int = 4, rank: int = 0, world_size: int = 1, broken: tuple[int, ...] = ()
    ) -> None:
        self.preprocessing = Preprocessing(image_size=(2, 3))
        source = SimpleNamespace(labels=torch.zeros(0, dtype=torch.int64))  # only their type and shape are asked for
        self.split = SimpleNamespace(indices=torch.arange(num) * 2 + 5, source=source)
        self.expected = self.split.indices
        self.num_total = num
        self.mine = list(range(rank, num, world_size))
        self.broken = set(broken)
        self.num_broken = sum(place % world_size == rank for place in broken)
        self.batch_size = batch_size
        self.batches = None

    def __len__(self) -> int:
        return math.ceil(len(self.mine) / self.batch_size)

    def __iter__(self) -> Iterator[SimpleNamespace]:
        yield from self.batches or self._made_up()

    def _made_up(self) -> Iterator[SimpleNamespace]:
        for start in range(0, len(self.mine), self.batch_size):
            chunk = self.mine[start : start + self.batch_size]
            places = torch.tensor([place for place in chunk if place not in self.broken], dtype=torch.int64)
            images = torch.zeros(len(places), 3, 2, 3, dtype=torch.uint8)
            images[:, 0, 0, 0] = places.to(torch.uint8)
            yield SimpleNamespace(images=images, labels=places % 3, indices=self.expected[places])


class IndexModel(nn.Module):
    """Three logits from the first pixel, which it reads back as an integer; some right, some wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.frozen = nn.BatchNorm1d(3).eval()
        self.weight = nn.Parameter(torch.eye(3) * 3)

    def forward(self, images: Tensor) -> Tensor:
        assert len(images) > 0
        places = (images[:, 0, 0, 0] * 0.5 + 0.5) * 255
        answers = torch.stack([(places * 7 + k * 5).round() % 11 for k in range(3)], dim=1)
        return self.dropout(answers @ self.weight)
