"""Regularization layers: dropout, stochastic depth, patch dropout and LayerScale.

The random layers do nothing in evaluation. In training they draw from `rng`, the batch's `SampleRandom`, forked by the
layer's `stream` number; without it, from torch's generator. Stochastic depth: Huang et al. 2016; patch dropout: Liu et
al. 2022; LayerScale: Touvron et al. 2021 (CaiT).
"""

from __future__ import annotations

import torch
from einops import repeat
from torch import Tensor, nn

from vit.randomness import SampleRandom


def _uniform(reference: Tensor, shape: tuple[int, ...], stream: int, rng: SampleRandom | None) -> Tensor:
    """(b, *shape) numbers in [0, 1) for the b samples of `reference`."""
    if rng is None:
        return torch.rand(reference.shape[0], *shape, device=reference.device)
    return rng.fork(stream).uniform(*shape)


class _RandomLayer(nn.Module):
    def __init__(self, rate: float, stream: int) -> None:
        super().__init__()
        self.rate = rate
        self.stream = stream

    def extra_repr(self) -> str:
        return f"rate={self.rate}, stream={self.stream}"


class Dropout(_RandomLayer):
    """Sets entries to zero and scales the rest up."""

    def forward(self, x: Tensor, rng: SampleRandom | None = None) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        if rng is None:
            return nn.functional.dropout(x, self.rate)
        keep = rng.fork(self.stream).keep(self.rate, *x.shape[1:])
        # not `new_tensor`, which starts on the CPU: a CUDA graph cannot capture that
        return x * (keep * keep.new_full((), 1 / (1 - self.rate), dtype=x.dtype))


class StochasticDepth(_RandomLayer):
    """Drops a residual branch for random samples, and scales it up for the others."""

    def forward(self, branch: Tensor, rng: SampleRandom | None = None) -> Tensor:
        if not self.training or self.rate == 0:
            return branch
        keep = _uniform(branch, (1,) * (branch.dim() - 1), self.stream, rng) >= self.rate  # b 1 1
        return branch * (keep / (1 - self.rate)).to(branch.dtype)


class PatchDropout(_RandomLayer):
    """Keeps a random subset of every sample's patches: `b n c -> b k c`, and their indices `b k`, ascending."""

    def forward(self, patches: Tensor, rng: SampleRandom | None = None) -> tuple[Tensor, Tensor | None]:
        if not self.training or self.rate == 0:
            return patches, None
        num_patches = patches.shape[1]
        num_kept = max(1, round(num_patches * (1 - self.rate)))
        kept = smallest(_uniform(patches, (num_patches,), self.stream, rng), num_kept)
        return take_patches(patches, kept), kept


def smallest(numbers: Tensor, count: int) -> Tensor:
    """Indices of the smallest numbers of each row, ascending, `b n -> b count`: of random ones, a random subset."""
    return numbers.argsort(dim=1, stable=True)[:, :count].sort(dim=1).values


def take_patches(patches: Tensor, kept: Tensor) -> Tensor:
    """The patches of the given indices, `b n c` and `b k -> b k c`."""
    return patches.gather(1, repeat(kept, "b k -> b k c", c=patches.shape[-1]))


class LayerScale(nn.Module):
    """A learned factor per channel of a residual branch."""

    def __init__(self, width: int, initial_value: float) -> None:
        super().__init__()
        self.initial_value = initial_value
        self.gamma = nn.Parameter(torch.full((width,), initial_value))

    def forward(self, branch: Tensor) -> Tensor:
        return branch * self.gamma
