"""Pixel operations on uint8 batches with one argument per sample, equal to Pillow's in whole numbers.

Every function: images uint8 (b, 3, h, w), argument (b,) float → uint8 (b, 3, h, w). Blending factors are rounded to
multiples of 2⁻¹² (a tenth of a level at most), which makes the arithmetic exact in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from einops import rearrange
from torch import Tensor

from vit.data.augment.resampling import blur_weights, resample

_FACTOR_UNIT = 2.0**-12


def auto_contrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel's range of values to 0..255."""
    pixels = images.to(torch.float32)
    low, high = pixels.amin(dim=(2, 3), keepdim=True), pixels.amax(dim=(2, 3), keepdim=True)
    stretched = ((pixels - low) * 255 / (high - low).clamp(min=1)).floor()
    return torch.where(high > low, stretched, pixels).to(torch.uint8)


def equalize(images: Tensor, _: Tensor) -> Tensor:
    """Flatten each channel's histogram by Pillow's table: (pixels darker + step / 2) / step, in whole numbers.

    `step` is the number of pixels below the brightest value present, over 255; an image where it is 0 stays as it is.
    """
    values = rearrange(images, "b c h w -> b c (h w)").to(torch.int64)
    histogram = values.new_zeros(*values.shape[:2], 256).scatter_add_(2, values, torch.ones_like(values))
    at_brightest = histogram.gather(2, values.amax(dim=2, keepdim=True))
    step = (values.shape[2] - at_brightest) // 255
    darker = histogram.cumsum(dim=2) - histogram
    table = ((darker + step // 2) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device))
    return table.to(torch.uint8).gather(2, values).view_as(images)


def invert(images: Tensor, _: Tensor) -> Tensor:
    return 255 - images


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the `bits` highest bits, 0 to 8."""
    mask = 256 - 2 ** (8 - bits.to(torch.int64))
    return images & mask.to(torch.uint8)[:, None, None, None]


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the values at or above the threshold."""
    return torch.where(images >= threshold[:, None, None, None], 255 - images, images)


def solarize_add(images: Tensor, amount: Tensor) -> Tensor:
    """Add a whole amount of 0 to 128 to the values below 128."""
    return torch.where(images < 128, images + amount.to(torch.uint8)[:, None, None, None], images)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with black; a factor above 1 brightens."""
    pixels = images.to(torch.float32)
    return blend(pixels, torch.zeros_like(pixels[:, :1]), factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image's mean luminance, rounded to a level."""
    pixels = images.to(torch.float32)
    return blend(pixels, mean_luminance(luminance(pixels)), factor)


def color(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey image."""
    pixels = images.to(torch.float32)
    return blend(pixels, luminance(pixels), factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image smoothed by Pillow's 3×3 kernel (1 1 1, 1 5 1, 1 1 1) / 13, border excepted."""
    pixels = images.to(torch.float32)
    smooth = pixels.clone()
    if min(images.shape[-2:]) > 2:
        columns = pixels[..., :-2] + pixels[..., 1:-1] + pixels[..., 2:]
        total = columns[:, :, :-2] + columns[:, :, 1:-1] + columns[:, :, 2:] + 4 * pixels[:, :, 1:-1, 1:-1]
        smooth[:, :, 1:-1, 1:-1] = ((total + 6.5) / 13).floor_()
    return blend(pixels, smooth, factor)


def gaussian_blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur by a Gaussian of `sigma` pixels, up to 2, cut off at 6 pixels; the border pixel is repeated."""
    rows, columns = (blur_weights(sigma, size, radius=6) for size in images.shape[-2:])
    return resample(images, rows, columns)


def blend(pixels: Tensor, reference: Tensor, factor: Tensor) -> Tensor:
    """Compute reference + factor · (pixels - reference), clamped to 0..255 and rounded down: float32 in, uint8 out."""
    steps = (factor / _FACTOR_UNIT).round().mul(_FACTOR_UNIT).to(torch.float32)[:, None, None, None]
    return (pixels - reference).mul_(steps).add_(reference).clamp_(0, 255).to(torch.uint8)


def luminance(pixels: Tensor) -> Tensor:
    """ITU-R 601 luminance (b, 1, h, w) of float32 pixels, in whole levels by Pillow's 16-bit fixed point."""
    red, green, blue = pixels.unbind(dim=1)
    weighted = red.mul(19595).add_(green, alpha=38470).add_(blue, alpha=7471)
    return weighted.add_(32768).div_(65536).floor_()[:, None]


def mean_luminance(grey: Tensor) -> Tensor:
    """Mean luminance (b, 1, 1, 1) of each image, rounded to a whole level."""
    mean = grey.sum(dim=(1, 2, 3), dtype=torch.float64) / grey[0].numel()
    return (mean + 0.5).floor().to(torch.float32)[:, None, None, None]


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "AutoContrast": auto_contrast,
    "Equalize": equalize,
    "Invert": invert,
    "Posterize": posterize,
    "Solarize": solarize,
    "SolarizeAdd": solarize_add,
    "Color": color,
    "Contrast": contrast,
    "Brightness": brightness,
    "Sharpness": sharpness,
    "GaussianBlur": gaussian_blur,
}
