"""Points of a curve to be estimated, and the steps that train on them.

The curve is `2 sin x + 0.4 sin 3x + 0.6 sin 6x + √x` on [0, 20]. Points are a function of a seed and of their number in
a part, so that a larger part holds the smaller one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vit.config import check
from vit.data.loading import Step
from vit.randomness import SampleRandom
from vit.tasks.regression.config import CurveConfig

INTERVAL = (0.0, 20.0)


def true_curve(x: Tensor) -> Tensor:
    """The truth at x ≥ 0, of any shape."""
    return 2 * torch.sin(x) + 0.4 * torch.sin(3 * x) + 0.6 * torch.sin(6 * x) + x.sqrt()


@dataclass(frozen=True)
class Points:
    """Places x (n,) in rising order with values y (n,), both float32."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: torch.device | str) -> Points:
        return Points(self.x.to(device), self.y.to(device))

    @property
    def fingerprint(self) -> str:
        content = b"".join(tensor.cpu().numpy().tobytes() for tensor in (self.x, self.y))
        return hashlib.sha256(content).hexdigest()[:16]


def draw_points(part: str, count: int, *, noise: float, seed: int) -> Points:
    """`count` uniform places, sorted, and the curve there with N(0, noise²) added; each part has other points."""
    random = SampleRandom.at(seed, 0, torch.arange(count)).fork(part)
    low, high = INTERVAL
    x = low + (high - low) * random.fork("place").uniform(1)[:, 0].double()
    y = true_curve(x) + noise * random.fork("noise").normal(1)[:, 0].double()
    order = torch.argsort(x, stable=True)
    return Points(x[order].float(), y[order].float())


def even_points(count: int) -> Points:
    """`count` places from one end of the interval to the other, and the curve itself."""
    x = torch.linspace(*INTERVAL, count, dtype=torch.float64)
    return Points(x.float(), true_curve(x).float())


def open_curve(config: CurveConfig) -> tuple[Points, Points]:
    """The training and the validation points."""
    sizes = {"train": config.train_points, "val": config.val_points}
    train, val = (draw_points(part, size, noise=config.noise, seed=config.points_seed) for part, size in sizes.items())
    return train, val


@dataclass(frozen=True)
class PointBatch:
    """One micro-batch of one process: b training points, `weights` all 1."""

    x: Tensor
    y: Tensor
    indices: Tensor
    """int64 (b,), their own keys."""
    weights: Tensor

    def to(self, device: torch.device | str) -> PointBatch:
        return PointBatch(*(tensor.to(device) for tensor in vars(self).values()))


class PointLoader:
    """Epochs of `passes` steps, each with all points, as one of `world_size` processes sees them.

    ValueError where there are more micro-batches than points.
    """

    def __init__(
        self, points: Points, passes: int, *, accumulation_steps: int = 1, rank: int = 0, world_size: int = 1
    ) -> None:
        assert 0 <= rank < world_size
        chunks = accumulation_steps * world_size
        rule = f"there are {chunks} micro-batches (train.accumulation_steps × processes), and each needs a point"
        check(chunks <= len(points), "data.train_points", len(points), rule)
        mine = torch.arange(len(points)).tensor_split(chunks)[rank::world_size]
        self._batches = [PointBatch(points.x[i], points.y[i], i, torch.ones(len(i))) for i in mine]
        self._passes, self._num_points = passes, len(points)

    @property
    def steps_per_epoch(self) -> int:
        return self._passes

    @property
    def samples_per_epoch(self) -> int:
        return self._passes * self._num_points

    def cost(self, epochs: int) -> float:
        """Every epoch has the same points."""
        return epochs

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Step]:  # noqa: ARG002
        """Every step is the same: all points."""
        for _ in range(start_step, self._passes):
            yield Step(self._batches, self._num_points, float(self._num_points))
