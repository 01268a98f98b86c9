"""How an image becomes a model's input at evaluation: resize, cut out the centre, normalise.

The same pixels as torchvision's `Resize` + `CenterCrop` on a PIL image, with the sizes that timm computes.
Owns the meaning of `Preprocessing`; knows nothing of data sets.
"""

from __future__ import annotations

import math

import torch
from PIL import Image
from torch import Tensor

from vit.config import Preprocessing

PIL_FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "nearest": Image.Resampling.NEAREST,
}


def to_tensor(image: Image.Image) -> Tensor:
    """An RGB image as uint8 (3, h, w)."""
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)  # numpy takes twice as long to ask PIL
    return pixels.view(image.height, image.width, 3).permute(2, 0, 1)  # einops takes as long as a small image


def resize_and_crop(image: Image.Image, preprocessing: Preprocessing) -> Tensor:
    """An RGB image as uint8 (3, H, W) of `preprocessing.image_size`.

    Its shorter side (for a non-square model: the side that allows less) becomes floor(image_size / crop_fraction), then
    the centre is cut out; with `squash` both sides become that. An image that has the size already is returned
    untouched.
    """
    height, width = _resized_size(image.height, image.width, preprocessing)
    if (height, width) == (image.height, image.width):
        pixels = to_tensor(image)
    elif preprocessing.antialias or preprocessing.interpolation == "nearest":
        pixels = to_tensor(image.resize((width, height), PIL_FILTERS[preprocessing.interpolation]))
    else:
        pixels = _resize_aliased(to_tensor(image), (height, width), preprocessing)
    crop_height, crop_width = preprocessing.image_size
    top, left = round((height - crop_height) / 2), round((width - crop_width) / 2)
    return pixels[:, top : top + crop_height, left : left + crop_width].contiguous()


def _resized_size(height: int, width: int, preprocessing: Preprocessing) -> tuple[int, int]:
    """(height, width) before the crop: torchvision's rounding for a square model, timm's for any other."""
    target = [math.floor(side / preprocessing.crop_fraction) for side in preprocessing.image_size]
    if preprocessing.squash:
        return target[0], target[1]
    if target[0] == target[1]:
        shorter = min(height, width)
        return int(target[0] * height / shorter), int(target[0] * width / shorter)
    shrink = min(height / target[0], width / target[1])
    return round(height / shrink), round(width / shrink)


def _resize_aliased(pixels: Tensor, size: tuple[int, int], preprocessing: Preprocessing) -> Tensor:
    """PIL always antialiases; models that were trained without need the plain interpolation of a tensor."""
    from torchvision.transforms.v2 import InterpolationMode, functional

    mode = InterpolationMode(preprocessing.interpolation)
    resized: Tensor = functional.resize(pixels, list(size), interpolation=mode, antialias=False)
    return resized


def normalize(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """uint8 (b, 3, h, w) to float32 on the same device: (images / 255 - mean) / std."""
    mean = torch.tensor(preprocessing.mean, device=images.device)[:, None, None]  # c 1 1
    std = torch.tensor(preprocessing.std, device=images.device)[:, None, None]
    return images.to(torch.float32).div_(255).sub_(mean).div_(std)
