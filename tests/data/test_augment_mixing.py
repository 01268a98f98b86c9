"""Mixup, CutMix and erasing: targets are pixel shares, partners stay in their group, rates and areas."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from tests.data.augment_batches import NUM_CLASSES, augmented, batch_of, piece, random_batch
from vit.config import AugmentConfig, Preprocessing
from vit.data.augment import Augment
from vit.data.augment.mixing import _partners, _span
from vit.data.loading import TrainBatch


def one_hot_images(count: int, side: int) -> TrainBatch:
    """Sample i is white (100) in channel 0 where i is even, else in channel 1; its class is the same."""
    images = torch.zeros(count, 3, side, side, dtype=torch.uint8)
    kind = torch.arange(count) % 2
    images[torch.arange(count), kind] = 100
    return dataclasses.replace(batch_of(images), labels=kind)


def shares(images: Tensor) -> Tensor:
    """(b, 2): part of each image that is white in channel 0 and in channel 1."""
    return images[:, :2].mean(dim=(2, 3)) / 100


def test_partners_by_hand() -> None:
    positions = torch.tensor([0, 1, 2, 3, 4, 5, 6])
    partner = _partners(positions, positions // 4)
    assert partner.tolist() == [3, 2, 1, 0, 6, 5, 4]
    shuffled = torch.tensor([6, 3, 0, 5, 2, 1, 4])
    partner = _partners(shuffled, shuffled // 4)
    assert shuffled[partner].tolist() == [4, 0, 3, 5, 1, 2, 6]


@pytest.mark.parametrize(
    "settings", [{"mixup_alpha": 0.8}, {"cutmix_alpha": 1.0}, {"mixup_alpha": 0.8, "cutmix_alpha": 1.0}]
)
def test_targets_are_the_shares_of_the_pixels(settings: dict[str, Any]) -> None:
    images, targets = augmented(one_hot_images(320, 17), side=17, mix_group=4, **settings)
    assert torch.allclose(targets.sum(dim=1), torch.ones(320))
    assert torch.allclose(shares(images), targets[:, :2], atol=1e-5)
    assert bool((targets[:, 2:] == 0).all())
    mixed = (targets.max(dim=1).values < 1).float().mean()
    assert mixed > 0.5


def test_cutmix_pixels_belong_to_one_image_and_fill_a_rectangle() -> None:
    batch = random_batch(16, 12)
    images, targets = augmented(batch, side=12, cutmix_alpha=1.0)
    partner = batch.images.view(2, 8, 3, 12, 12).flip(1).reshape(16, 3, 12, 12)
    from_partner = (images.round() == partner).all(dim=1) & ~(images.round() == batch.images).all(dim=1)
    from_self = (images.round() == batch.images).all(dim=1)
    assert bool((from_partner | from_self).all())
    for mask, target, label in zip(from_partner, targets, batch.labels, strict=True):
        rows, columns = mask.any(dim=1), mask.any(dim=0)
        assert mask.sum() == rows.sum() * columns.sum()
        assert abs(1 - mask.float().mean() - target[label]) < 1e-6


def test_the_rectangle_is_timms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Odd and even sides, clipped at every border, of an image that is not square."""
    pytest.importorskip("timm", minversion="1.0.29", reason="older ones leave the last pixel of an odd side out")
    from timm.data.mixup import rand_bbox

    height, width = 13, 18
    for ratio, row, column in itertools.product((0.05, 0.31, 0.5, 0.77, 0.93, 0.999), range(height), range(width)):
        monkeypatch.setattr(np.random, "randint", Mock(side_effect=(row, column)))
        top, bottom, left, right = rand_bbox((3, height, width), ratio)
        expected = torch.zeros(height, width, dtype=torch.bool)
        expected[top:bottom, left:right] = True
        side = torch.tensor([1 - ratio]).sqrt()
        rows = _span(torch.tensor([(row + 0.5) / height]), side, height)
        columns = _span(torch.tensor([(column + 0.5) / width]), side, width)
        assert torch.equal(rows[0, :, None] & columns[0], expected)


def test_lambda_is_one_per_group_and_follows_its_distribution() -> None:
    _, targets = augmented(one_hot_images(4000, 2), side=2, mix_group=2, mixup_alpha=0.4)
    own = targets[torch.arange(4000), torch.arange(4000) % 2]
    assert torch.equal(own[::2], own[1::2])
    lambdas = own[::2].double().numpy()
    assert stats.kstest(lambdas, stats.beta(0.4, 0.4).cdf).pvalue > 0.01


def test_rates_of_mixing_and_of_cutmix() -> None:
    batch = one_hot_images(4000, 9)
    settings: dict[str, Any] = {"mixup_alpha": 1.0, "cutmix_alpha": 1.0, "mix_group": 2}
    images, targets = augmented(batch, side=9, mix_probability=0.6, cutmix_probability=0.3, **settings)
    untouched = (targets.max(dim=1).values == 1).view(-1, 2).all(dim=1)
    blended = ((images[:, :2] > 0.5) & (images[:, :2] < 99.5)).flatten(1).any(dim=1).view(-1, 2).any(dim=1)
    assert abs(blended.float().mean() - 0.6 * 0.7) < 0.04
    # A small part of CutMix's rectangles is empty.
    assert abs(untouched.float().mean() - 0.4) < 0.07


def test_ragged_group_group_of_one_and_weightless_partner() -> None:
    batch = one_hot_images(19, 5)
    _, targets = augmented(batch, side=5, mix_group=4, mixup_alpha=5.0)
    own = targets[torch.arange(19), batch.labels]
    assert bool((own[:16] < 1).all())
    assert own[17] == 1  # positions 16, 17, 18: the middle one is its own partner, and 16 and 18 are of one class
    _, targets = augmented(piece(batch, 0, 17), side=5, mix_group=4, mixup_alpha=5.0)
    assert targets[16, 0] == 1
    weights = torch.ones(8)
    weights[2] = 0
    broken = dataclasses.replace(piece(batch, 0, 8), weights=weights)
    _, with_broken = augmented(broken, side=5, mix_group=4, mixup_alpha=5.0)
    _, without = augmented(piece(batch, 0, 8), side=5, mix_group=4, mixup_alpha=5.0)
    assert with_broken[1, 1] == 1
    keep = [0, 2, 3, 4, 5, 6, 7]
    assert torch.equal(with_broken[keep], without[keep])


def erased_batch(probability: float, size: tuple[int, int], count: int = 3000) -> Tensor:
    images = torch.full((count, 3, *size), 51, dtype=torch.uint8)
    config = AugmentConfig(erasing_probability=probability)
    preprocessing = Preprocessing(image_size=size, mean=(0.2, 0.2, 0.2), std=(0.5, 0.5, 0.5))
    return Augment(config, preprocessing, NUM_CLASSES)(batch_of(images), seed=0, epoch=0)[0]


@pytest.mark.parametrize("size", [(40, 40), (40, 60)])
def test_erasing_rate_area_ratio_and_noise(size: tuple[int, int]) -> None:
    images = erased_batch(0.4, size)
    erased = (images.abs() > 1e-6).any(dim=1)  # the image itself is 0 after normalisation
    touched = erased.flatten(1).any(dim=1)
    assert abs(touched.float().mean() - 0.4) < 0.04
    rows, columns = erased.any(dim=2).sum(dim=1)[touched], erased.any(dim=1).sum(dim=1)[touched]
    area = (rows * columns).double() / (size[0] * size[1])
    assert torch.equal(erased.flatten(1).sum(dim=1)[touched], rows * columns)
    assert 0.015 < area.min() < 0.03
    assert 0.30 < area.max() < 0.35
    assert abs(area.mean() - (0.02 + 1 / 3) / 2) < 0.01
    assert 0.2 < (columns / rows).min() < 0.4
    assert 2.5 < (columns / rows).max() < 5
    noise = images.movedim(1, -1)[erased].double()
    assert abs(noise.mean()) < 0.01
    assert abs(noise.std() - 1) < 0.01
    assert stats.kstest(noise.flatten()[:20000].numpy(), "norm").pvalue > 0.01
    assert abs(torch.corrcoef(noise[:5000].T)[0, 1]) < 0.05


@pytest.mark.parametrize("side", [1, 2, 8])
def test_erasing_works_on_small_images(side: int) -> None:
    assert bool(erased_batch(1.0, (side, side), 50).isfinite().all())
