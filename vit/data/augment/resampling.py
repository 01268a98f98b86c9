"""Resizing, cropping and blurring by two small matrices per sample: out = rows · image · columnsᵀ.

Every separable resampling is a product with one matrix per axis, and a batched product costs little compared to the
model. So each sample may have its own box, mirroring and filter width, with the antialiasing of Pillow and
torchvision's `resized_crop` at any reduction, which `grid_sample` lacks. Weights are multiples of 2⁻¹⁵ and the image is
rounded between the axes (as in Pillow): both products are exact in float32. (With TF32 products enabled on a GPU they
are exact to about a tenth of a level, before rounding.)
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from einops import rearrange
from torch import Tensor

Filter = Literal["nearest", "bilinear", "bicubic"]

_UNIT = 2.0**-15
_CHUNK, _CHUNK_ON_DEVICE = 32, 256
"""Samples resampled at a time: on a CPU so that the intermediate images stay in its caches, elsewhere so that they take
little memory.
"""
_RADIUS = {"nearest": 0.5, "bilinear": 1.0, "bicubic": 2.0}


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Apply rows (b, H, h) and columns (b, W, w) to images uint8 (b, 3, h, w): uint8 (b, 3, H, W)."""
    chunk = _CHUNK if images.device.type == "cpu" else _CHUNK_ON_DEVICE
    parts = zip(*(tensor.split(chunk) for tensor in (images, rows, columns)), strict=True)
    return torch.cat([_resample_chunk(*part) for part in parts])


def _resample_chunk(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Channels are stacked along an axis, so that each step is one product per sample."""
    lines = rearrange(images, "b c h w -> b (h c) w").to(torch.float32)
    lines = (lines @ columns.mT).add_(0.5).floor_().clamp_(0, 255)
    lines = rearrange(lines, "b (h c) w -> b h (c w)", c=images.shape[1])
    lines = (rows @ lines).add_(0.5).clamp_(0, 255).to(torch.uint8)
    return rearrange(lines, "b h (c w) -> b c h w", c=images.shape[1])


def resize_weights(
    start: Tensor,
    length: Tensor,
    num_in: int,
    num_out: int,
    *,
    filter: Filter,
    antialias: bool,
    mirrored: Tensor | None = None,
) -> Tensor:
    """Build weights (b, num_out, num_in) that resize pixels [start, start + length) of an axis to `num_out` pixels.

    `start`, `length`: int64 (b,). Pixels outside the box have no weight and the rest is renormalised, as if the box
    had been cropped first. `mirrored`: boolean (b,). The filters are Pillow's (bicubic with a = -0.5).
    """
    scale = length.to(torch.float64)[:, None] / num_out  # b 1
    stretch = scale.clamp(min=1) if antialias and filter != "nearest" else torch.ones_like(scale)
    out = torch.arange(num_out, device=start.device).expand(len(start), -1)  # b num_out
    if mirrored is not None:
        out = torch.where(mirrored[:, None], num_out - 1 - out, out)
    center = (out + 0.5) * scale
    radius = _RADIUS[filter]
    first = (center - radius * stretch + 0.5).floor()
    taps = math.ceil(2 * radius * (max(1.0, num_in / num_out) if antialias else 1.0)) + 1
    source = first[:, None] + torch.arange(taps, device=start.device)[:, None]  # b taps num_out
    distance = (source + 0.5 - center[:, None]) / stretch[:, None]
    inside = (source >= 0) & (source < length[:, None, None])
    weights = _filter_value(filter, distance) * inside
    return _scatter(weights, source + start[:, None, None], num_in)


def blur_weights(sigma: Tensor, size: int, *, radius: int) -> Tensor:
    """Weights (b, size, size) of a Gaussian of standard deviation `sigma` (b,) pixels, cut off at `radius` pixels.

    Beyond the border the last pixel is repeated (Pillow's rule).
    """
    offset = torch.arange(-radius, radius + 1, device=sigma.device)
    weights = torch.exp(-0.5 * (offset / sigma.to(torch.float64)[:, None]).square())  # b taps
    source = torch.arange(size, device=sigma.device) + offset[:, None]  # taps size
    return _scatter(weights[..., None].expand(-1, -1, size), source.expand(len(sigma), -1, -1), size)


def _filter_value(filter: Filter, distance: Tensor) -> Tensor:
    near = distance.abs()
    if filter == "nearest":
        return ((distance > -0.5) & (distance <= 0.5)).to(torch.float64)
    if filter == "bilinear":
        return (1 - near).clamp(min=0)
    inner = (1.5 * near - 2.5) * near.square() + 1
    outer = ((-0.5 * near + 2.5) * near - 4) * near + 2
    return torch.where(near < 1, inner, torch.where(near < 2, outer, 0.0))


def _scatter(weights: Tensor, source: Tensor, num_in: int) -> Tensor:
    """Normalise taps (b, taps, num_out), round them to the fixed-point unit and scatter them over `num_in` pixels."""
    weights = weights / weights.sum(dim=1, keepdim=True)
    weights = (weights / _UNIT).round().mul(_UNIT).to(torch.float32)
    dense = weights.new_zeros(len(weights), weights.shape[2], num_in)
    return dense.scatter_add_(2, source.to(torch.int64).clamp(0, num_in - 1).mT, weights.mT)
