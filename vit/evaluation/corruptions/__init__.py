"""Image corruptions: the fifteen kinds of ImageNet-C at five severities (Hendrycks and Dietterich 2019).

Computed as by the code that made ImageNet-C (`make_imagenet_c.py` of github.com/hendrycks/robustness; installable as
imagecorruptions 1.1.2), with other random numbers; `CONVENTIONS` names what differs. Batched, on the images' device,
and reproducible: the result depends on (seed, index of the image, kind, severity), not on the batch. JPEG compression
and pixelation go through Pillow, image by image.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vit.config import check, nearest
from vit.evaluation.corruptions import blur, digital, noise, weather
from vit.evaluation.corruptions.severities import CONSTANTS, severities_for_size
from vit.randomness import SampleRandom

KINDS = tuple(CONSTANTS)
"""In the order of the paper."""
SEVERITIES = (1, 2, 3, 4, 5)
MIN_SIDE = 32
"""In pixels: on smaller images, trails and disks would not fit."""
CONVENTIONS = {
    "corruptions": "fifteen kinds, five severities of Hendrycks and Dietterich 2019 (ImageNet-C), made anew: the same "
    "constants, other random numbers; numbers are comparable among models evaluated here, nearly with published ones",
    "frost": "generated ice, not the original's photographs: not comparable with published numbers",
    "glass_blur": "near pixels are copied, as the original's code does, and not exchanged, as its paper says",
    "elastic_transform": "interpolated once, where the original interpolates twice and blurs a little more",
    "compression": "not stored as JPEG of quality 85 afterwards, as the original's images are",
    "constants": "shorter side of at least 120 pixels: ImageNet-C's; from 45: Tiny-ImageNet-C's; else CIFAR-C's",
}
_OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": weather.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
}


def corrupt(images: Tensor, kind: str, severity: int, *, indices: Tensor, seed: int = 0) -> Tensor:
    """Corrupt images uint8 (b, 3, h, w), whose numbers in their source are `indices` int64 (b,).

    The constants depend on the shorter side (`severities_for_size`). ValueError for an unknown kind or severity, and
    for sides below `MIN_SIDE`.
    """
    assert images.dtype == torch.uint8
    assert indices.shape == images.shape[:1]
    check_corruption(kind, severity)
    side = min(images.shape[-2:])
    check(side >= MIN_SIDE, "images", f"{side} pixels", f"their sides must have at least {MIN_SIDE}")
    rng = SampleRandom.at(seed, severity, indices.to(images.device)).fork(kind)
    constants = severities_for_size(side)[kind][severity - 1]
    pixels = _OPERATIONS[kind](images.to(torch.float32) / 255, rng, *constants)
    return pixels.mul_(255).add_(1e-3).clamp_(0, 255).to(torch.uint8)  # rounded down, as the original does


def check_corruption(kind: str, severity: int) -> None:
    """Raise ValueError unless there is such a corruption."""
    check(kind in KINDS, "corruption", kind, nearest(kind, KINDS))
    check(severity in SEVERITIES, "severity", severity, "it is 1, 2, 3, 4 or 5")
