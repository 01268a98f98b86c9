"""Rotation, shear and translation: affine maps of output to input points, so one `grid_sample` applies any mix of them.

Maps are Pillow's: shear about the upper left corner, rotation about the centre, counter-clockwise. Sampling is bilinear
and pixels from outside are grey 128, as in timm and big_vision.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

GEOMETRY = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
_FILL = 128


def warp_affine(images: Tensor, maps: Tensor) -> Tensor:
    """Sample images uint8 (b, 3, h, w) at maps · (x, y, 1), float64 (b, 2, 3) in pixels with centres at halves."""
    height, width = images.shape[-2:]
    x = torch.arange(width, device=images.device) + 0.5
    y = torch.arange(height, device=images.device) + 0.5
    grid = maps.new_empty(len(images), height, width, 2, dtype=torch.float32)
    for axis, size in enumerate((width, height)):
        unit = maps[:, axis] * 2 / size  # b 3
        of_columns, of_rows = unit[:, :1] * x, unit[:, 1:2] * y + (unit[:, 2:] - 1)  # b w, b h
        torch.add(of_columns.float()[:, None], of_rows.float()[:, :, None], out=grid[..., axis])
    # grid_sample pads with zeros, so grey is shifted to zero; at the edge the image then blends into the fill.
    centered = images.to(torch.float32) - _FILL
    sampled = F.grid_sample(centered, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return (sampled + _FILL).round_().clamp_(0, 255).to(torch.uint8)


def affine_maps(kind: Tensor, amount: Tensor, size: tuple[int, int]) -> Tensor:
    """Build maps (b, 2, 3) float64: `kind` (b,) indexes `GEOMETRY`; amounts: degrees, slopes, parts of a side."""
    height, width = size
    amount = amount.to(torch.float64)
    is_rotation, is_shear_x, is_shear_y, is_shift_x, is_shift_y = (kind == index for index in range(len(GEOMETRY)))
    angle = torch.deg2rad(amount * is_rotation)
    cos, sin = angle.cos(), angle.sin()
    # Image rows run downwards: this rotates counter-clockwise about the centre.
    x_of = torch.stack([cos, -sin + amount * is_shear_x, (width - cos * width + sin * height) / 2], dim=1)
    y_of = torch.stack([sin + amount * is_shear_y, cos, (height - sin * width - cos * height) / 2], dim=1)
    x_of[:, 2] += amount * is_shift_x * width
    y_of[:, 2] += amount * is_shift_y * height
    return torch.stack([x_of, y_of], dim=1)
