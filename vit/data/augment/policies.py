"""Choice of operations and their strengths for each sample: RandAugment, AutoAugment, 3-Augment, colour jitter.

A policy is a few slots; in each slot a sample draws one operation and its strength, the batch is sorted by operation,
and each operation runs once on the samples that drew it (all geometric ones together).

- RandAugment is timm's `rand-m{magnitude}-mstd{std}-inc1` with `num_ops` slots: one of fifteen operations, drawn with
  replacement, applied with probability 1/2, its level drawn around `magnitude` and clamped to 0..10.
- AutoAugment draws one of 25 pairs of (operation, probability, level); pairs and strengths are torchvision's.
- 3-Augment (DeiT-III) draws one of grey, solarize at 128, and blur by 0.1 to 2 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from vit.config import AugmentConfig
from vit.data.augment.colors import OPERATIONS, blend, luminance, mean_luminance
from vit.data.augment.geometry import GEOMETRY, affine_maps, warp_affine
from vit.randomness import SampleRandom

Policy = tuple[tuple[tuple[str, float, int], ...], ...]

_NAMES = (*GEOMETRY, *OPERATIONS)
_IDENTITY = len(_NAMES)


@dataclass(frozen=True)
class Strength:
    """An operation's argument at a level in 0..1: base ± slope · level, the product rounded by `rounding`."""

    base: float = 0.0
    slope: float = 0.0
    signed: bool = False
    rounding: Literal["none", "down", "nearest"] = "none"


_ENHANCE = Strength(1, 0.9, signed=True)
_RANDAUGMENT = {
    "AutoContrast": Strength(),
    "Equalize": Strength(),
    "Invert": Strength(),
    "Rotate": Strength(0, 30, signed=True),
    "Posterize": Strength(4, -4, rounding="down"),
    "Solarize": Strength(256, -256, rounding="down"),
    "SolarizeAdd": Strength(0, 110, rounding="down"),
    "Color": _ENHANCE,
    "Contrast": _ENHANCE,
    "Brightness": _ENHANCE,
    "Sharpness": _ENHANCE,
    "ShearX": Strength(0, 0.3, signed=True),
    "ShearY": Strength(0, 0.3, signed=True),
    "TranslateX": Strength(0, 0.45, signed=True),
    "TranslateY": Strength(0, 0.45, signed=True),
}
_AUTOAUGMENT = {name: strength for name, strength in _RANDAUGMENT.items() if name != "SolarizeAdd"} | {
    "Posterize": Strength(8, -4, rounding="nearest"),
    "Solarize": Strength(255, -255),
    "TranslateX": Strength(0, 150 / 331, signed=True),
    "TranslateY": Strength(0, 150 / 331, signed=True),
}


def apply_policy(images: Tensor, rng: SampleRandom, config: AugmentConfig) -> Tensor:
    """Apply `config.policy` to images uint8 (b, 3, h, w)."""
    match config.policy:
        case "none":
            return images
        case "randaugment":
            return _randaugment(images, rng, config)
        case "autoaugment_cifar10":
            return _autoaugment(images, rng, autoaugment_policy("cifar10"))
        case "autoaugment_imagenet":
            return _autoaugment(images, rng, autoaugment_policy("imagenet"))
        case "three_augment":
            return _three_augment(images, rng)


@cache
def autoaugment_policy(data: Literal["cifar10", "imagenet"]) -> Policy:
    """Pairs of (operation, probability, level 0 to 9) found for a data set (Cubuk et al. 2019, appendix).

    The level is 0 for an operation without a strength. Two rows of ImageNet's policy are repeated, as in the paper.
    """
    from torchvision.transforms import autoaugment  # takes a second to import, and few runs need it

    rows = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy(data)).policies
    return tuple(tuple((name, probability, level or 0) for name, probability, level in row) for row in rows)


def apply_operations(images: Tensor, kind: Tensor, argument: Tensor) -> Tensor:
    """Apply one operation to each sample: `kind` (b,) indexes geometry, then `OPERATIONS`; beyond them, none."""
    order = kind.argsort(stable=True)
    counts = torch.bincount(kind, minlength=_IDENTITY + 1).tolist()
    # sorted by operation, so that each operation runs once, on a slice
    images, argument, kind = (each.index_select(0, order) for each in (images, argument, kind))
    first = sum(counts[: len(GEOMETRY)])
    if first:
        maps = affine_maps(kind[:first], argument[:first], (images.shape[-2], images.shape[-1]))
        images[:first] = warp_affine(images[:first], maps)
    for operation, count in zip(OPERATIONS.values(), counts[len(GEOMETRY) : _IDENTITY], strict=True):
        if count:
            last = first + count
            images[first:last] = operation(images[first:last], argument[first:last])
            first = last
    return images.index_select(0, order.argsort())


def jitter_colors(images: Tensor, rng: SampleRandom, strength: float) -> Tensor:
    """Change brightness, contrast and saturation by factors in [max(0, 1 - strength), 1 + strength], in random order.

    torchvision's `ColorJitter(strength, strength, strength)`. All three are blends with a reference (black, the mean
    luminance, the luminance), so each of the three turns is one blend of the whole batch.
    """
    order = rng.fork("jitter order").uniform(3).argsort(dim=1)  # b 3
    low = max(0.0, 1 - strength)
    factors = low + (1 + strength - low) * rng.fork("jitter").uniform(3)
    for turn in range(3):
        kind = order[:, turn, None, None, None]
        pixels = images.to(torch.float32)
        grey = luminance(pixels)
        reference = torch.where(kind == 2, grey, torch.where(kind == 1, mean_luminance(grey), 0.0))
        images = blend(pixels, reference, factors.gather(1, order)[:, turn])
    return images


def make_some_grey(images: Tensor, rng: SampleRandom, probability: float) -> Tensor:
    """Replace some images uint8 (b, 3, h, w) by their luminance in all channels (torchvision's RandomGrayscale)."""
    chosen = rng.fork("grey").uniform() < probability
    grey = luminance(images[chosen].to(torch.float32)).to(torch.uint8)
    images = images.clone()
    images[chosen] = grey.expand(-1, 3, -1, -1)
    return images


def _randaugment(images: Tensor, rng: SampleRandom, config: AugmentConfig) -> Tensor:
    names = tuple(_RANDAUGMENT)
    codes = torch.tensor([_NAMES.index(name) for name in names], device=images.device)
    for slot in range(config.num_ops):
        stream = rng.fork(f"randaugment {slot}")
        kind = codes[stream.fork("operation").integers(len(names))]
        kind = torch.where(stream.fork("applied").uniform() < 0.5, kind, _IDENTITY)
        level = config.magnitude + config.magnitude_std * stream.fork("level").normal().to(torch.float64)
        negative = stream.fork("sign").uniform() < 0.5
        images = apply_operations(images, kind, _arguments(_RANDAUGMENT, kind, level.clamp(0, 10) / 10, negative))
    return images


def _autoaugment(images: Tensor, rng: SampleRandom, policy: Policy) -> Tensor:
    pair = rng.fork("autoaugment").integers(len(policy))
    for slot in range(2):
        stream = rng.fork(f"autoaugment {slot}")
        rows = [row[slot] for row in policy]
        codes = torch.tensor([_NAMES.index(name) for name, _, _ in rows], device=images.device)
        numbers = torch.tensor([row[1:] for row in rows], dtype=torch.float64, device=images.device)[pair]  # b 2
        applied = stream.fork("applied").uniform() < numbers[:, 0]
        kind = torch.where(applied, codes[pair], _IDENTITY)
        negative = stream.fork("sign").uniform() < 0.5
        images = apply_operations(images, kind, _arguments(_AUTOAUGMENT, kind, numbers[:, 1] / 9, negative))
    return images


def _three_augment(images: Tensor, rng: SampleRandom) -> Tensor:
    codes = torch.tensor([_NAMES.index(name) for name in ("Color", "Solarize", "GaussianBlur")], device=images.device)
    choice = rng.fork("three augment").integers(3)
    sigma = 0.1 + 1.9 * rng.fork("three augment blur").uniform()
    argument = torch.where(choice == 2, sigma, torch.where(choice == 1, 128.0, 0.0))
    return apply_operations(images, codes[choice], argument)


def _arguments(strengths: dict[str, Strength], kind: Tensor, level: Tensor, negative: Tensor) -> Tensor:
    """Each sample's argument (b,) float64 for its operation, 0 where it takes none.

    `level`: float64 in 0..1; `negative`: a random sign, used where the operation has two directions.
    """
    by_kind = [strengths.get(name, Strength()) for name in _NAMES] + [Strength()]
    rows = [[s.base, s.slope, s.signed, s.rounding == "down", s.rounding == "nearest"] for s in by_kind]
    table = torch.tensor(rows, dtype=torch.float64, device=kind.device)[kind]  # b 5
    base, slope, signed, down, nearest = table.unbind(dim=1)
    amount = slope * level
    amount = torch.where(down > 0, amount.trunc(), torch.where(nearest > 0, amount.round(), amount))
    return base + torch.where(negative & (signed > 0), -amount, amount)
