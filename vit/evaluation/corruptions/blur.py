"""Defocus, glass, motion and zoom blur. Pixels are float32 (b, c, h, w) in [0, 1]."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, pad

from vit.randomness import SampleRandom


def defocus_blur(pixels: Tensor, rng: SampleRandom, radius: float, softness: float) -> Tensor:  # noqa: ARG001
    """Spread every point over a disk with a soft edge; beyond the border the image is mirrored.

    As in the original, the disk too is mirrored at the border of its square while it is softened. One that fills the
    square sums to more than 1 then: the image becomes 1 to 2 % brighter.
    """
    reach = max(8, math.ceil(radius))
    offset = torch.arange(-reach, reach + 1)
    disk = (offset.square()[:, None] + offset.square() <= radius**2).to(torch.float64)
    edge = torch.arange(-1, 2) if radius <= 8 else torch.arange(-2, 3)
    taps = torch.exp(-0.5 * (edge.to(torch.float64) / softness).square())
    taps /= taps.sum()
    mirrored = pad((disk / disk.sum())[None, None], (len(edge) // 2,) * 4, mode="reflect")
    kernel = conv2d(mirrored, torch.outer(taps, taps)[None, None]).to(pixels)
    planes = rearrange(pixels, "b c h w -> (b c) 1 h w")
    blurred = conv2d(pad(planes, (reach,) * 4, mode="reflect"), kernel)
    return rearrange(blurred, "(b c) 1 h w -> b c h w", c=pixels.shape[1])


def glass_blur(pixels: Tensor, rng: SampleRandom, deviation: float, farthest: float, passes: float) -> Tensor:
    """Blur, give pixels the values of near ones, and blur again.

    The original's line means to exchange two pixels, but both sides of it are views of one array: it copies the
    second to the first. ImageNet-C is made so, and so are these.
    """
    height, width = pixels.shape[-2:]
    blurred = gaussian_filter(pixels, deviation, border="nearest").mul(255).add(1e-3).floor().div(255)
    places = torch.arange(height * width, device=pixels.device).repeat(len(pixels), 1)  # b (h w)
    reach = int(farthest)
    for number in range(int(passes)):
        moves = rng.fork(number).integers(2 * reach, 2, height, width) - reach
        copy_from_near(places, moves, reach)
    flat = rearrange(blurred, "b c h w -> b c (h w)")
    moved = flat.gather(2, places[:, None].expand(-1, flat.shape[1], -1))  # b c (h w)
    return gaussian_filter(moved.view_as(pixels), deviation, border="nearest")


def copy_from_near(places: Tensor, moves: Tensor, reach: int) -> None:
    """Copy to each pixel that is not at the border, from the last to the first, the one that `moves` leads to.

    `places` b (h w), in place; `moves` b 2 h w, down and right, from -reach to reach - 1. A pixel depends on those up
    to `reach` rows and columns away. With reach + 1 columns of delay from row to row, no two of one step do, and every
    one still comes after those before it: the result is that of one pixel after another.
    """
    height, width = moves.shape[-2:]
    rows = torch.arange(height - reach, reach, -1, device=places.device)
    columns = torch.arange(width - reach, reach, -1, device=places.device)
    here = (rows[:, None] * width + columns).flatten()
    steps = (height - reach - rows)[:, None] * (reach + 1) + (width - reach - columns)
    order = steps.flatten().argsort(stable=True)
    here = here[order]
    down, right = rearrange(moves, "b two h w -> two b (h w)")[:, :, here]
    there = here + down * width + right  # b n
    sizes = torch.bincount(steps.flatten()).tolist()
    for to, source in zip(here.split(sizes), there.split(sizes, dim=1), strict=True):
        places[:, to] = places.gather(1, source)


def motion_blur(pixels: Tensor, rng: SampleRandom, radius: float, deviation: float) -> Tensor:
    """Draw points out into a trail at an angle of up to 45° from the horizontal."""
    return motion_trail(pixels, radius, deviation, degrees=rng.uniform() * 90 - 45)


def motion_trail(pixels: Tensor, radius: float, deviation: float, degrees: Tensor) -> Tensor:
    """Draw points out to one side, fading as half a Gaussian: ImageMagick's motion blur of 2 radius + 1 pixels.

    `degrees` (b,), clockwise from the right. Beyond the border the last pixel is repeated.
    """
    height, width = pixels.shape[-2:]
    steps = range(2 * int(radius) + 1)
    weights = [math.exp(-0.5 * (step / deviation) ** 2) for step in steps]
    rows, columns = torch.arange(height, device=pixels.device), torch.arange(width, device=pixels.device)
    batch = torch.arange(len(pixels), device=pixels.device)[:, None, None]
    total = torch.zeros_like(rearrange(pixels, "b c h w -> b h w c"))
    last = rearrange(pixels, "b c h w -> b h w c").contiguous()
    angle = degrees.to(torch.float64).deg2rad()[:, None]  # b 1
    for step, weight in zip(steps, weights, strict=True):
        down, right = ((step * part - 0.5).ceil().to(torch.int64) for part in (angle.sin(), angle.cos()))
        from_rows, from_columns = (rows + down).clamp(0, height - 1), (columns + right).clamp(0, width - 1)  # b h, b w
        total.add_(last[batch, from_rows[:, :, None], from_columns[:, None, :]], alpha=weight / sum(weights))
    return rearrange(total, "b h w c -> b c h w")


def zoom_blur(pixels: Tensor, rng: SampleRandom, largest: float, step: float) -> Tensor:  # noqa: ARG001
    """Average the image and its centre at growing zoom."""
    factors = np.arange(1, largest, step).tolist()
    total = pixels.clone()
    for factor in factors:
        total += zoom_in(pixels, factor)
    return total / (len(factors) + 1)


def zoom_in(pixels: Tensor, factor: float) -> Tensor:
    """Enlarge the centre to the image's own size, linearly between corner pixels."""
    height, width = pixels.shape[-2:]
    kept = [math.ceil(side / factor) for side in (height, width)]
    top, left = (height - kept[0]) // 2, (width - kept[1]) // 2
    centre = pixels[..., top : top + kept[0], left : left + kept[1]]
    size = [max(side, round(part * factor)) for side, part in zip((height, width), kept, strict=True)]
    larger = interpolate(centre, size=size, mode="bilinear", align_corners=True)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    return larger[..., top : top + height, left : left + width]


def gaussian_filter(
    pixels: Tensor, deviation: float, *, border: Literal["nearest", "reflect"], cut_off: float = 4.0
) -> Tensor:
    """Blur along both axes, cut off at `cut_off` standard deviations; `reflect` repeats the border (c b a a b c)."""
    reach = int(cut_off * deviation + 0.5)
    if reach == 0:
        return pixels
    rows, columns = (_gaussian_matrix(side, deviation, reach, border).to(pixels) for side in pixels.shape[-2:])
    return rows @ pixels @ columns.mT


def _gaussian_matrix(side: int, deviation: float, reach: int, border: str) -> Tensor:
    """Build (side, side): a row of weights for each pixel."""
    offset = torch.arange(-reach, reach + 1)
    weights = torch.exp(-0.5 * (offset.to(torch.float64) / deviation).square())
    source = torch.arange(side)[:, None] + offset  # side taps
    if border == "reflect":
        source = source.remainder(2 * side)
        source = torch.minimum(source, 2 * side - 1 - source)
    matrix = torch.zeros(side, side, dtype=torch.float64)
    return matrix.scatter_add_(1, source.clamp(0, side - 1), (weights / weights.sum()).expand(side, -1))
