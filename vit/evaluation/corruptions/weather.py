"""Snow, frost, fog, brightness and contrast. Pixels are float32 (b, 3, h, w) in [0, 1].

Frost is not the original's, which lays one of its photographs of frozen panes over the image; they are not shipped
here. The ice is generated instead, see `ice`; so results on this kind are comparable among models evaluated here, but
not with published ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vit.evaluation.corruptions.blur import gaussian_filter, motion_trail, zoom_in
from vit.randomness import SampleRandom

_ICE_COLOUR = (0.84, 0.93, 1.0)


def snow(
    pixels: Tensor,
    rng: SampleRandom,
    mean: float,
    spread: float,
    zoom: float,
    threshold: float,
    radius: float,
    deviation: float,
    kept: float,
) -> Tensor:
    """Lay flakes with trails, and the same rotated by 180°, over an image whose colours whiten."""
    flakes = zoom_in(mean + spread * rng.fork("flakes").normal(1, *pixels.shape[-2:]), zoom)  # b 1 h w
    flakes = flakes.masked_fill(flakes < threshold, 0).clamp(0, 1)
    flakes = motion_trail(flakes, radius, deviation, degrees=rng.fork("angle").uniform() * 90 - 135)
    weights = torch.tensor((0.299, 0.587, 0.114), device=pixels.device)[:, None, None]  # ITU-R 601
    grey = (pixels * weights).sum(dim=1, keepdim=True)
    whitened = torch.maximum(pixels, grey * 1.5 + 0.5)
    return kept * pixels + (1 - kept) * whitened + flakes + flakes.flip(2, 3)


def frost(pixels: Tensor, rng: SampleRandom, image: float, frozen: float) -> Tensor:
    """Blend the image with a generated pane of ice."""
    return image * pixels + frozen * ice(rng, pixels.shape[-2:])


def ice(rng: SampleRandom, size: tuple[int, int] | torch.Size) -> Tensor:
    """Generate a frozen pane (b, 3, h, w) in [0, 1]: needles in three directions 60° apart over veins of four scales.

    Scales are fractions of the shorter side, so that a small image shows the whole pattern of a large one.
    """
    side = min(size)
    veins = torch.zeros(len(rng.state), 1, *size, device=rng.state.device)
    for octave in range(4):
        noise = gaussian_filter(rng.fork(octave).normal(1, *size), max(0.7, side / 2 ** (4 + octave)), border="reflect")
        veins += 2.0**-octave * (-(4 * noise / noise.std(dim=(2, 3), keepdim=True)).abs()).exp()
    seeds = (rng.fork("seeds").uniform(1, *size) < 0.004).to(torch.float32)
    turn = rng.fork("turn").uniform() * 60
    needles = [motion_trail(seeds, side // 12, side / 14, turn + 60 * direction) for direction in range(3)]
    crystals = gaussian_filter(torch.stack(needles).amax(dim=0), side / 280, border="nearest")
    brightness = 0.45 + 0.3 * veins + 0.9 * side**0.5 * crystals
    return brightness.clamp(0, 1) * torch.tensor(_ICE_COLOUR, device=veins.device)[:, None, None]


def fog(pixels: Tensor, rng: SampleRandom, density: float, decay: float) -> Tensor:
    """Add clouds and scale the sum back to the image's own maximum."""
    brightest = pixels.amax(dim=(1, 2, 3), keepdim=True)
    clouds = plasma(rng, pixels.shape[-2:], decay)
    return (pixels + density * clouds) * brightest / (brightest + density)


def plasma(rng: SampleRandom, size: tuple[int, int] | torch.Size, decay: float) -> Tensor:
    """Generate clouds (b, 1, h, w) in [0, 1] by diamond-square (Fournier, Fussell and Carpenter 1982) on a torus.

    From scale to scale the roughness falls by the square of `decay`, as in the original.
    """
    side = 1 << (max(size) - 1).bit_length()
    height_map = torch.zeros(len(rng.state), side, side, device=rng.state.device)
    step, roughness = side, 1.0
    while step >= 2:
        half = step // 2
        draws = (rng.fork(step).uniform(3, side // step, side // step) * 2 - 1) * roughness
        corners = height_map[:, ::step, ::step].clone()
        beside = corners + corners.roll(-1, 1)
        centres = (beside + beside.roll(-1, 2)) / 4 + draws[:, 0]
        height_map[:, half::step, half::step] = centres
        height_map[:, ::step, half::step] = _mean_of_four(centres, corners, axis=1) + draws[:, 1]
        height_map[:, half::step, ::step] = _mean_of_four(centres, corners, axis=2) + draws[:, 2]
        step, roughness = half, roughness / decay**2
    low, high = height_map.amin(dim=(1, 2), keepdim=True), height_map.amax(dim=(1, 2), keepdim=True)
    return ((height_map - low) / (high - low))[:, None, : size[0], : size[1]]


def _mean_of_four(centres: Tensor, corners: Tensor, axis: int) -> Tensor:
    """Average a diamond: the centres here and one back along `axis`, the corners here and one on along the other."""
    return (centres + centres.roll(1, axis) + corners + corners.roll(-1, 3 - axis)) / 4


def brightness(pixels: Tensor, rng: SampleRandom, added: float) -> Tensor:  # noqa: ARG001
    """Raise the value of HSV; hue and saturation stay. Black, which has neither, becomes grey."""
    value = pixels.amax(dim=1, keepdim=True)
    raised = (value + added).clamp(max=1)
    return torch.where(value > 0, pixels * raised / value.clamp(min=1 / 255), raised)


def contrast(pixels: Tensor, rng: SampleRandom, factor: float) -> Tensor:  # noqa: ARG001
    """Blend with the mean of each channel."""
    means = pixels.mean(dim=(2, 3), keepdim=True)
    return (pixels - means) * factor + means
