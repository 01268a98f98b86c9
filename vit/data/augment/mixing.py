"""Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019) inside fixed groups of neighbouring positions.

A sample's partner is the one at the mirrored place of its group; every choice (mixed at all, which of the two, lambda,
the rectangle) is made once a group. So mixing needs nothing from outside the group and is the same for any division of
a step into whole groups. A group of one, and the middle of an odd group, stay as they are; so does a sample whose
partner has weight 0 (a broken image). The rectangle and its area-corrected lambda follow timm's CutMix.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vit.config import AugmentConfig
from vit.randomness import SampleRandom


def mix(
    images: Tensor,
    targets: Tensor,
    positions: Tensor,
    weights: Tensor,
    config: AugmentConfig,
    *,
    seed: int,
    epoch: int,
) -> tuple[Tensor, Tensor]:
    """Mixed images (b, 3, h, w) and targets (b, k); the share of a sample's own pixels is its own target's share."""
    groups, member_of = torch.unique(positions // config.mix_group, return_inverse=True)
    partner = _partners(positions, member_of)
    share = _own_share(SampleRandom.at(seed, epoch, groups), config, images.shape[-2:])  # groups h w
    share = share[member_of]  # b h w
    share[weights[partner] == 0] = 1
    mixed = torch.lerp(images[partner], images, share[:, None])
    own = share.mean(dim=(1, 2), dtype=torch.float64).to(targets.dtype)[:, None]
    return mixed, torch.lerp(targets[partner], targets, own)


def _partners(positions: Tensor, member_of: Tensor) -> Tensor:
    """(b,) index of each sample's partner in the batch: the k-th of a group and the k-th from its end."""
    order = positions.argsort()
    size = torch.bincount(member_of)
    start = size.cumsum(dim=0) - size
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    mirrored = 2 * start[member_of] + size[member_of] - 1 - rank
    return order[mirrored]


def _own_share(rng: SampleRandom, config: AugmentConfig, size: torch.Size) -> Tensor:
    """(groups, h, w) float32: how much of its own pixel a sample of the group keeps."""
    height, width = size
    share = torch.ones(len(rng.state), height, width, device=rng.state.device)
    use_cutmix = rng.fork("mix kind").uniform() < _cutmix_rate(config)
    if config.mixup_alpha > 0:
        ratio = rng.fork("mixup lambda").beta(config.mixup_alpha)
        share = torch.where(use_cutmix[:, None, None], share, ratio[:, None, None])
    if config.cutmix_alpha > 0:
        ratio = rng.fork("cutmix lambda").beta(config.cutmix_alpha)
        outside = ~_rectangles(rng.fork("cutmix place"), ratio, height, width)
        share = torch.where(use_cutmix[:, None, None], outside.to(share.dtype), share)
    mixed = rng.fork("mix").uniform() < config.mix_probability
    return torch.where(mixed[:, None, None], share, 1.0)


def _cutmix_rate(config: AugmentConfig) -> float:
    if config.mixup_alpha > 0 and config.cutmix_alpha > 0:
        return config.cutmix_probability
    return 1.0 if config.cutmix_alpha > 0 else 0.0


def _rectangles(rng: SampleRandom, ratio: Tensor, height: int, width: int) -> Tensor:
    """(groups, h, w) boolean: a rectangle of area 1 - ratio around a uniform centre, cut at the border."""
    side = (1 - ratio).sqrt()
    center = rng.uniform(2)
    rows = _span(center[:, 0], side, height)[:, :, None]
    columns = _span(center[:, 1], side, width)[:, None, :]
    return rows & columns


def _span(center: Tensor, fraction: Tensor, size: int) -> Tensor:
    """(groups, size) boolean: an interval of about `fraction` of the axis around the pixel `center` falls on."""
    half = (fraction * size).to(torch.int64) // 2
    middle = (center * size).to(torch.int64)
    pixel = torch.arange(size, device=center.device)
    return (pixel >= (middle - half)[:, None]) & (pixel < (middle + half)[:, None])
