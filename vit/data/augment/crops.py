"""Crops: rectangles of the canvas drawn for a whole batch, and the shift of padded images.

Boxes are whole canvas pixels. A canvas may be squashed: `aspects` is the original's width / height
for a square one, and areas and ratios are those of the original image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from vit.randomness import SampleRandom

_TRIES = 10


@dataclass(frozen=True)
class Boxes:
    """One rectangle per sample, in canvas pixels; every field is int64 (b,)."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor

    def cover(self, canvas: tuple[int, int]) -> bool:
        """Check that every box is the whole canvas."""
        return bool(((self.height == canvas[0]) & (self.width == canvas[1])).all())


def draw_boxes(
    rng: SampleRandom,
    canvas: tuple[int, int],
    shape: Tensor,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[Boxes, Tensor]:
    """Boxes of uniform area in `scale` and log-uniform width / height in `ratio`, with a mask (b,) of those that fit.

    `shape` (b,): width / height of the image. torchvision draws up to ten times until a box fits; here ten candidates
    are drawn at once and the first that fits is used, which gives the same distribution. Where none fits, the caller
    must replace the box.
    """
    draws = rng.fork("size").uniform(_TRIES, 2).to(torch.float64)  # b tries 2
    area = scale[0] + (scale[1] - scale[0]) * draws[..., 0]
    low, high = math.log(ratio[0]), math.log(ratio[1])
    relative = torch.exp(low + (high - low) * draws[..., 1]) / shape[:, None]
    heights = ((area / relative).sqrt() * canvas[0]).round().to(torch.int64)
    widths = ((area * relative).sqrt() * canvas[1]).round().to(torch.int64)
    fits = (heights > 0) & (heights <= canvas[0]) & (widths > 0) & (widths <= canvas[1])
    misses = (fits.cumsum(dim=1) == 0).sum(dim=1, keepdim=True)  # b 1
    chosen = misses.clamp(max=_TRIES - 1)
    height, width = (sizes.gather(1, chosen).squeeze(1).clamp(min=1) for sizes in (heights, widths))
    corner = rng.fork("place").uniform(2)
    top = (corner[:, 0] * (canvas[0] - height + 1)).to(torch.int64)
    left = (corner[:, 1] * (canvas[1] - width + 1)).to(torch.int64)
    return Boxes(top, left, height, width), misses.squeeze(1) < _TRIES


def random_resized_boxes(
    rng: SampleRandom,
    canvas: tuple[int, int],
    aspects: Tensor,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Boxes:
    """Draw the boxes of torchvision's `RandomResizedCrop`: the largest central box within `ratio` where none fits."""
    shape = _image_shape(canvas, aspects)
    boxes, fits = draw_boxes(rng, canvas, shape, scale=scale, ratio=ratio)
    fallback = _central(canvas, (shape / ratio[0]).clamp(max=1), (ratio[1] / shape).clamp(max=1))
    pairs = ((getattr(boxes, name), getattr(fallback, name)) for name in ("top", "left", "height", "width"))
    return Boxes(*(torch.where(fits, drawn, central) for drawn, central in pairs))


def evaluation_boxes(
    canvas: tuple[int, int], aspects: Tensor, image_size: tuple[int, int], crop_fraction: float, *, squash: bool = False
) -> Boxes:
    """The evaluation crop: the largest central box of the input's shape, or with `squash` of the image's, times
    `crop_fraction`.
    """
    excess = _image_shape(canvas, aspects) * image_size[0] / image_size[1]  # above 1: wider than the input
    if squash:
        excess = torch.ones_like(excess)
    return _central(canvas, crop_fraction * excess.clamp(max=1), crop_fraction * (1 / excess).clamp(max=1))


def shift_reflected(images: Tensor, offset: Tensor, mirrored: Tensor) -> Tensor:
    """Shift images uint8 (b, 3, h, w) by `offset` (b, 2) rows and columns and flip those that are `mirrored` (b,).

    Beyond the border, the image is reflected without repeating the border pixel; an offset is smaller than the side.
    """
    num_rows, num_columns = images.shape[-2:]
    rows = _reflect(torch.arange(num_rows, device=images.device) + offset[:, :1], num_rows)  # b h
    columns = _reflect(torch.arange(num_columns, device=images.device) + offset[:, 1:], num_columns)  # b w
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    source = rearrange(rows[:, :, None] * num_columns + columns[:, None, :], "b h w -> b 1 (h w)")
    pixels = rearrange(images, "b c h w -> b c (h w)")
    return pixels.gather(2, source.expand_as(pixels)).view_as(images)


def _image_shape(canvas: tuple[int, int], aspects: Tensor) -> Tensor:
    """Width / height (b,) of the original images."""
    return aspects.to(torch.float64) * canvas[1] / canvas[0]


def _central(canvas: tuple[int, int], height: Tensor, width: Tensor) -> Boxes:
    """Place a central box whose sides are these fractions (b,) of the canvas."""
    rows = (height * canvas[0]).round().to(torch.int64).clamp(1, canvas[0])
    columns = (width * canvas[1]).round().to(torch.int64).clamp(1, canvas[1])
    return Boxes((canvas[0] - rows) // 2, (canvas[1] - columns) // 2, rows, columns)


def _reflect(index: Tensor, size: int) -> Tensor:
    """Fold indices just outside [0, size) back in without repeating the border pixel."""
    index = index.abs()
    return torch.where(index >= size, 2 * (size - 1) - index, index)
