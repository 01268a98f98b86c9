"""Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019) inside fixed groups of neighbouring positions.

A sample's partner is at the mirrored position of its group; every choice (mixed at all, which of the two, lambda, the
rectangle) is made once per group. So mixing needs nothing from outside the group and is the same for any division of a
step into whole groups. A group of one, and the middle of an odd group, are not mixed; nor is a sample whose partner has
weight 0 (a broken image).

The rectangle, and lambda corrected to its area, are those of timm since 1.0.29: a side of an odd number of pixels is
one longer below and right of the centre. The paper's code and torchvision leave that pixel out: their sides are even.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vit.config import AugmentConfig
from vit.randomness import SampleRandom


def mixup_or_cutmix(
    images: Tensor,
    targets: Tensor,
    positions: Tensor,
    weights: Tensor,
    config: AugmentConfig,
    *,
    seed: int,
    epoch: int,
) -> tuple[Tensor, Tensor]:
    """Mix images (b, 3, h, w) and targets (b, k); a sample's target gets the mean weight of its pixels."""
    groups, member_of = torch.unique(positions // config.mix_group, return_inverse=True)
    partner = _partners(positions, member_of)
    own_weight = _own_weight(SampleRandom.at(seed, epoch, groups), config, images.shape[-2:])  # groups h w
    own_weight = own_weight[member_of]  # b h w
    own_weight[weights[partner] == 0] = 1
    mixed = torch.lerp(images[partner], images, own_weight[:, None])
    of_target = own_weight.mean(dim=(1, 2), dtype=torch.float64).to(targets.dtype)[:, None]
    return mixed, torch.lerp(targets[partner], targets, of_target)


def _partners(positions: Tensor, member_of: Tensor) -> Tensor:
    """The index (b,) of each sample's partner in the batch: the k-th of a group and the k-th from its end."""
    order = positions.argsort()
    size = torch.bincount(member_of)
    start = size.cumsum(dim=0) - size
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    mirrored = 2 * start[member_of] + size[member_of] - 1 - rank
    return order[mirrored]


def _own_weight(rng: SampleRandom, config: AugmentConfig, size: torch.Size) -> Tensor:
    """Draw the weight (groups, h, w) float32 of a sample's own pixels, one map per group."""
    height, width = size
    weight = torch.ones(len(rng.state), height, width, device=rng.state.device)
    both = config.mixup_alpha > 0 and config.cutmix_alpha > 0
    cutmix_rate = config.cutmix_probability if both else float(config.cutmix_alpha > 0)
    use_cutmix = rng.fork("mix kind").uniform() < cutmix_rate
    if config.mixup_alpha > 0:
        ratio = rng.fork("mixup lambda").beta(config.mixup_alpha)
        weight = torch.where(use_cutmix[:, None, None], weight, ratio[:, None, None])
    if config.cutmix_alpha > 0:
        ratio = rng.fork("cutmix lambda").beta(config.cutmix_alpha)
        outside = ~_rectangles(rng.fork("cutmix place"), ratio, height, width)
        weight = torch.where(use_cutmix[:, None, None], outside.to(weight.dtype), weight)
    mixed = rng.fork("mix").uniform() < config.mix_probability
    return torch.where(mixed[:, None, None], weight, 1.0)


def _rectangles(rng: SampleRandom, ratio: Tensor, height: int, width: int) -> Tensor:
    """Draw masks (groups, h, w): a rectangle of area 1 - ratio around a uniform centre, clipped at the border."""
    side = (1 - ratio).sqrt()
    center = rng.uniform(2)
    rows, columns = _span(center[:, 0], side, height), _span(center[:, 1], side, width)
    return rows[:, :, None] & columns[:, None, :]


def _span(center: Tensor, fraction: Tensor, size: int) -> Tensor:
    """A mask (groups, size) of about `fraction` of an axis, around the pixel at `center`."""
    side = (fraction * size).to(torch.int64)
    middle = (center * size).to(torch.int64)
    pixel = torch.arange(size, device=center.device)
    return (pixel >= (middle - side // 2)[:, None]) & (pixel < (middle + (side + 1) // 2)[:, None])
