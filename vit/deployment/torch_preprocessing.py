"""Preprocessing at evaluation as a module that torch.export can trace: images of any size in, normalised ones out.

The sizes and corners are those of `vit.data.preprocessing`, computed of symbols. Pixels are resampled by torch, whose
antialiased filters differ from Pillow's by one level of 255 in about one pixel of a hundred.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from vit.config import Preprocessing

_RESIZE = {
    ("bicubic", True): torch.ops.aten._upsample_bicubic2d_aa,
    ("bilinear", True): torch.ops.aten._upsample_bilinear2d_aa,
    ("bicubic", False): torch.ops.aten.upsample_bicubic2d,
    ("bilinear", False): torch.ops.aten.upsample_bilinear2d,
}


class ImagePreparation(nn.Module):
    """uint8 (b, height, width, 3) of any height and width to float32 (b, 3, *image_size), as the model takes it."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.preprocessing = preprocessing
        mean, std = (torch.tensor(values)[:, None, None] for values in (preprocessing.mean, preprocessing.std))  # c 1 1
        self.mean = nn.Buffer(mean)
        self.std = nn.Buffer(std)

    def forward(self, pixels: Tensor) -> Tensor:
        images = pixels.permute(0, 3, 1, 2)  # b c h w
        resized = self._resize(images, *self._resized_size(images.shape[2], images.shape[3]))
        for axis, side in zip((2, 3), self.preprocessing.image_size, strict=True):
            # not `narrow`: whether its result is dense would be written into the program as a condition on the sizes
            resized = resized.index_select(axis, self._corner(resized.shape[axis], side) + torch.arange(side))
        normalized = (resized.to(torch.float32) / 255 - self.mean) / self.std
        return normalized if self.preprocessing.channel_order == "rgb" else normalized.flip(1)

    def _resized_size(self, height: Any, width: Any) -> tuple[Any, Any]:
        """Before the crop: rounded down for a square model, else to the nearest pixel. In integers throughout."""
        target = [math.floor(side / self.preprocessing.crop_fraction) for side in self.preprocessing.image_size]
        if self.preprocessing.squash:
            return target[0], target[1]
        if target[0] == target[1]:
            shorter = torch.sym_min(height, width)
            return target[0] * height // shorter, target[0] * width // shorter
        return (
            torch.sym_max(target[0], _nearest_ratio(height * target[1], width)),
            torch.sym_max(target[1], _nearest_ratio(width * target[0], height)),
        )

    def _resize(self, images: Tensor, height: Any, width: Any) -> Tensor:
        settings = self.preprocessing
        if settings.interpolation == "nearest":
            rows, columns = _nearest_pixels(images.shape[2], height), _nearest_pixels(images.shape[3], width)
            return images[:, :, rows][:, :, :, columns]
        resized: Tensor = _RESIZE[settings.interpolation, settings.antialias](images, [height, width], False)
        return resized

    def _corner(self, side: Any, kept: int) -> Any:
        """The half of what is cut off, rounded down or, where that is said, to the even pixel."""
        half, odd = (side - kept) // 2, (side - kept) % 2
        return half + odd * (half % 2) if self.preprocessing.crop_rounding == "even" else half


def _nearest_ratio(dividend: Any, divisor: Any) -> Any:
    """The nearest integer, of two the even one: Python's `round`, which a saved program cannot hold."""
    upper = (2 * dividend + divisor) // (2 * divisor)
    is_between = upper - (2 * dividend + divisor - 1) // (2 * divisor)
    return upper - is_between * (upper % 2)


def _nearest_pixels(side: Any, new_side: Any) -> Tensor:
    """The pixel of the old side, int64 (new_side,), in which the centre of each new one lies."""
    centres = torch.arange(new_side, dtype=torch.float64) + 0.5
    return (centres * side / new_side).to(torch.int64)
