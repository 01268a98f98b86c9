"""Preprocessing at evaluation: resize, crop the centre, normalise.

The pixels are those of torchvision's `Resize` and `CenterCrop` on a PIL image, at the sizes that timm computes.
torchvision's own classes are not used: `Resize` neither skips an image of the right size nor fits a non-square model as
timm does.
"""

from __future__ import annotations

import math

import torch
from PIL import Image
from torch import Tensor

from vit.config import Interpolation, Preprocessing

PIL_FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "nearest": Image.Resampling.NEAREST,
}


_LONGEST = 100
"""An image is resized to no more than so many times the model's height or width."""


def to_tensor(image: Image.Image) -> Tensor:
    """Convert an RGB image to uint8 (3, h, w)."""
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)  # twice as fast as numpy
    # not einops, which takes as long as copying a small image
    return pixels.view(image.height, image.width, 3).permute(2, 0, 1)  # 3 h w


def resize_and_crop(image: Image.Image, preprocessing: Preprocessing) -> Tensor:
    """Resize an RGB image and crop its centre: uint8 (3, H, W) of `preprocessing.image_size`.

    The shorter side (for a non-square model, relative to the model's) becomes floor(image_size / crop_fraction), with
    `squash` both sides; then the centre is cropped. An image of that size is not resampled. Of one that is very much
    longer than wide, or wider than long, only the middle is resized: a line of a hundred thousand pixels would become
    billions.
    """
    height, width = _resized_size(image.height, image.width, preprocessing)
    if height > _LONGEST * preprocessing.image_size[0] or width > _LONGEST * preprocessing.image_size[1]:
        image = _middle(image, height, width, preprocessing.image_size)
        height, width = _resized_size(image.height, image.width, preprocessing)
    if (height, width) == (image.height, image.width):
        pixels = to_tensor(image)
    else:
        pixels = resized(image, (height, width), preprocessing.interpolation, antialias=preprocessing.antialias)
    crop_height, crop_width = preprocessing.image_size
    corner = round if preprocessing.crop_rounding == "even" else math.floor
    top, left = corner((height - crop_height) / 2), corner((width - crop_width) / 2)
    return pixels[:, top : top + crop_height, left : left + crop_width].contiguous()


def resized(image: Image.Image, size: tuple[int, int], interpolation: Interpolation, *, antialias: bool) -> Tensor:
    """Resize an RGB image to uint8 (3, h, w) of this (h, w)."""
    if antialias or interpolation == "nearest":
        return to_tensor(image.resize((size[1], size[0]), PIL_FILTERS[interpolation]))
    # PIL always antialiases; models trained without it need plain interpolation of a tensor
    from torchvision.transforms.v2 import InterpolationMode, functional

    mode = InterpolationMode(interpolation)
    pixels: Tensor = functional.resize(to_tensor(image), list(size), interpolation=mode, antialias=False)
    return pixels


def _middle(image: Image.Image, height: int, width: int, kept: tuple[int, int]) -> Image.Image:
    """The middle of an image that would be resized to (height, width), of which the crop keeps the centre alone."""
    sides = []
    for side, resized, crop in ((image.width, width, kept[1]), (image.height, height, kept[0])):
        excess = max(0, side - math.ceil(side * _LONGEST * crop / resized)) // 2
        sides.append((excess, side - excess))  # as much on both ends: the centre stays where it is
    (left, right), (top, bottom) = sides
    return image.crop((left, top, right, bottom))


def _resized_size(height: int, width: int, preprocessing: Preprocessing) -> tuple[int, int]:
    """The (height, width) before the crop: rounded as in torchvision for a square model, else as in timm."""
    target = [math.floor(side / preprocessing.crop_fraction) for side in preprocessing.image_size]
    if preprocessing.squash:
        return target[0], target[1]
    if target[0] == target[1]:
        shorter = min(height, width)
        return int(target[0] * height / shorter), int(target[0] * width / shorter)
    shrink = min(height / target[0], width / target[1])
    return round(height / shrink), round(width / shrink)


def normalize(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Normalise RGB images uint8 (b, 3, h, w) to float32 on the same device: (images / 255 - mean) / std."""
    mean = torch.tensor(preprocessing.mean, device=images.device)[:, None, None]  # c 1 1
    std = torch.tensor(preprocessing.std, device=images.device)[:, None, None]
    normalized = images.to(torch.float32).div_(255).sub_(mean).div_(std)
    return normalized if preprocessing.channel_order == "rgb" else normalized.flip(1)
