"""Rotary positions: queries and keys are rotated by angles that grow with the place of their token.

RoPE: Su et al. 2021. For images, one half of the channel pairs is rotated by the row and the other by the column
(axial), or every pair by both, at frequencies that each head of each block learns (mixed): Heo et al. 2024. Coordinates
scaled to the grid of pre-training: EVA-02 (Fang et al. 2023). Centred coordinates: DINOv3 (Siméoni et al. 2025).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor, nn

from vit.config import Grid, ViTConfig


@dataclass(frozen=True)
class Rotation:
    """Rotates pairs of channels (i, i + d/2) of `b h n d`, by tables that broadcast to it: see `rotation_by`."""

    cos: Tensor
    signed_sin: Tensor  # the first half negative: the second channel of a pair enters the first with a minus

    def __call__(self, vectors: Tensor) -> Tensor:
        vectors = vectors.contiguous()  # as slices of the projection they are multiplied in runs of d numbers
        first, second = vectors.chunk(2, dim=-1)
        swapped = torch.cat((second, first), dim=-1)
        cos, signed_sin = self.cos.to(vectors.dtype), self.signed_sin.to(vectors.dtype)
        return torch.addcmul(vectors * cos, swapped, signed_sin)  # b h n d


def rotation_by(angles: Tensor, *, num_prefix: int = 0) -> Rotation:
    """The rotation by `angles`, (n, d/2), (h, n, d/2) or (b, 1 or h, n, d/2), of the last n tokens.

    The `num_prefix` tokens in front of them are left as they are.
    """
    angles = F.pad(angles, (0, 0, num_prefix, 0))  # a rotation by 0 changes nothing
    cos, sin = angles.cos().float(), angles.sin().float()
    return Rotation(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))


class Rotary(nn.Module):
    """The rotation of every block, from the settings `rope_…` of the configuration."""

    frequencies: nn.Parameter | None

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        pairs = config.width // config.num_heads // 2
        self.frequencies = None
        if config.rope_mixed:
            self.frequencies = nn.Parameter(torch.empty(2, config.depth, config.num_heads, pairs))

    def rotations(self, grid: Grid, kept: Tensor | None, device: torch.device) -> tuple[Rotation, ...]:
        """The rotations of every block for a grid; `kept` (b, k): the patches that patch dropout kept, None: all."""
        num_prefix = self.config.num_prefix_tokens
        rotations = tuple(rotation_by(each, num_prefix=num_prefix) for each in self.angles(grid, kept, device))
        return rotations if self.config.rope_mixed else rotations * self.config.depth

    def angles(self, grid: Grid, kept: Tensor | None, device: torch.device) -> tuple[Tensor, ...]:
        """The patches' angles, one tensor (n, d/2) for all blocks; mixed: one (h, n, d/2) for every block.

        With `kept` (b, 1, k, d/2) and (b, h, k, d/2).
        """
        if self.frequencies is None:
            angles = axial_angles(self.config, grid, device)  # n d/2
            return (angles if kept is None else rearrange(angles[kept], "b k d -> b 1 k d"),)
        places = torch.stack(patch_coordinates(self.config, grid, device))  # 2 n
        products = self.frequencies.float()[..., None, :] * rearrange(places, "two n -> two 1 1 n 1")
        mixed = products[0] + products[1]  # l h n d/2
        return (mixed if kept is None else rearrange(mixed[:, :, kept], "l h b k d -> l b h k d")).unbind()


def patch_coordinates(config: ViTConfig, grid: Grid, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column of every patch, (n,) each, in the unit that angles are proportional to; columns perhaps first."""
    along = [
        axis_coordinates(config, size, reference, device)
        for size, reference in zip(grid, config.rope_grid or grid, strict=True)
    ]
    rows, columns = repeat(along[0], "gh -> (gh gw)", gw=grid[1]), repeat(along[1], "gw -> (gh gw)", gh=grid[0])
    return (columns, rows) if config.rope_columns_first else (rows, columns)


def axis_coordinates(config: ViTConfig, size: int, reference: int, device: torch.device) -> Tensor:
    """Coordinates along one axis of the grid, (size,); `reference`: the size that they are scaled to."""
    if config.rope_coordinates == "centred":
        return (torch.arange(0.5, size, device=device) / size * 2 - 1) * (2 * math.pi)
    places = torch.arange(size, device=device, dtype=torch.float32) + config.rope_offset
    return places if size == reference else places / size * reference


def axial_rates(config: ViTConfig, count: int, device: torch.device) -> Tensor:
    """Angles a patch of the `count` frequencies along one axis, from 1 down to about 1 / `rope_temperature`."""
    return config.rope_temperature ** -(torch.arange(count, device=device) / count)


def axial_angles(config: ViTConfig, grid: Grid, device: torch.device) -> Tensor:
    """Angles of every patch, `n d/2`: the first half by its row, the second by its column, or the reverse."""
    rates = axial_rates(config, config.width // config.num_heads // 4, device)
    return torch.cat([places[:, None] * rates for places in patch_coordinates(config, grid, device)], dim=1)
