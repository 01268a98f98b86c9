"""Rotation, shear and translation: each is an affine map of output to input points, so any mix is one `grid_sample`.

Maps are Pillow's: shear about the upper left corner, rotation about the centre, counter-clockwise. Sampling is bilinear
and what comes from outside is grey 128, as in timm and big_vision.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

GEOMETRY = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
_FILL = 128


def warp(images: Tensor, maps: Tensor) -> Tensor:
    """uint8 (b, 3, h, w) sampled at maps · (x, y, 1): float64 (b, 2, 3), in pixels, pixel centres at halves."""
    height, width = images.shape[-2:]
    x = torch.arange(width, device=images.device) + 0.5
    y = torch.arange(height, device=images.device) + 0.5
    grid = maps.new_empty(len(images), height, width, 2, dtype=torch.float32)
    for axis, size in enumerate((width, height)):
        unit = maps[:, axis] * 2 / size  # b 3
        of_columns, of_rows = unit[:, :1] * x, unit[:, 1:2] * y + (unit[:, 2:] - 1)  # b w, b h
        torch.add(of_columns.float()[:, None], of_rows.float()[:, :, None], out=grid[..., axis])
    # Padding is zero, so grey is made zero: at the edge the image fades into the fill.
    centered = images.to(torch.float32) - _FILL
    sampled = F.grid_sample(centered, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return (sampled + _FILL).round_().clamp_(0, 255).to(torch.uint8)


def affine_maps(kind: Tensor, amount: Tensor, size: tuple[int, int]) -> Tensor:
    """(b, 2, 3) float64 maps: `kind` (b,) indexes `GEOMETRY`; amounts: degrees, pixels a pixel, parts of the side."""
    height, width = size
    amount = amount.to(torch.float64)
    is_rotation, is_shear_x, is_shear_y, is_shift_x, is_shift_y = (kind == index for index in range(len(GEOMETRY)))
    angle = torch.deg2rad(amount * is_rotation)
    cos, sin = angle.cos(), angle.sin()
    # Image rows run downwards: this turns the picture counter-clockwise about its centre.
    x_of = torch.stack([cos, -sin + amount * is_shear_x, (width - cos * width + sin * height) / 2], dim=1)
    y_of = torch.stack([sin + amount * is_shear_y, cos, (height - sin * width - cos * height) / 2], dim=1)
    x_of[:, 2] += amount * is_shift_x * width
    y_of[:, 2] += amount * is_shift_y * height
    return torch.stack([x_of, y_of], dim=1)
