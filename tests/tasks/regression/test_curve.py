"""The curve by hand, its points, and the steps that train on them."""

from __future__ import annotations

import math

import pytest
import torch

from vit.tasks.regression.config import CurveConfig
from vit.tasks.regression.curve import PointLoader, Points, draw_points, even_points, open_curve, true_curve


def test_the_curve_by_hand() -> None:
    """At π/2: 2 · 1 + 0.4 · (-1) + 0.6 · 0 + √(π/2)."""
    x = torch.tensor([0.0, math.pi / 2, 4.0], dtype=torch.float64)
    by_hand = [
        0.0,
        1.6 + math.sqrt(math.pi / 2),
        2 * math.sin(4) + 0.4 * math.sin(12) + 0.6 * math.sin(24) + 2,
    ]
    assert true_curve(x).tolist() == pytest.approx(by_hand, abs=1e-12)


def test_points_are_sorted_uniform_and_noisy_as_asked() -> None:
    points = draw_points("train", 6000, noise=0.5, seed=0)
    assert (points.x.diff() >= 0).all()
    assert 0 <= points.x[0] < 0.05
    assert 19.95 < points.x[-1] < 20
    assert torch.histc(points.x, 10, 0, 20).std() < 3 * math.sqrt(600)
    noise = points.y - true_curve(points.x)
    assert float(noise.mean()) == pytest.approx(0, abs=4 * 0.5 / math.sqrt(6000))
    assert float(noise.std()) == pytest.approx(0.5, rel=0.04)
    torch.testing.assert_close(
        draw_points("train", 7, noise=0, seed=0).y, true_curve(draw_points("train", 7, noise=0, seed=0).x)
    )


def test_points_follow_seed_and_part_and_the_larger_part_holds_the_smaller() -> None:
    points = draw_points("train", 50, noise=0.5, seed=0)
    assert points.fingerprint == draw_points("train", 50, noise=0.5, seed=0).fingerprint
    larger = draw_points("train", 83, noise=0.5, seed=0)
    assert set(zip(points.x.tolist(), points.y.tolist(), strict=True)) <= set(
        zip(larger.x.tolist(), larger.y.tolist(), strict=True)
    )
    for part, seed, noise in (("val", 0, 0.5), ("train", 1, 0.5), ("train", 0, 0.4)):
        assert draw_points(part, 50, noise=noise, seed=seed).fingerprint != points.fingerprint


def test_test_points_are_even_and_the_curve_itself() -> None:
    points = even_points(41)
    torch.testing.assert_close(points.x, torch.arange(41) / 2)
    torch.testing.assert_close(points.y, true_curve(points.x.double()).float())


def test_the_settings_say_how_many_how_noisy_and_which() -> None:
    train, val = open_curve(CurveConfig(train_points=11, val_points=5, noise=0.25, points_seed=3))
    assert train.fingerprint == draw_points("train", 11, noise=0.25, seed=3).fingerprint
    assert val.fingerprint == draw_points("val", 5, noise=0.25, seed=3).fingerprint


def points(n: int) -> Points:
    return Points(torch.arange(n).float(), 10 + torch.arange(n).float())


def test_every_step_has_all_points_once_whatever_the_division() -> None:
    for steps, world in ((1, 1), (2, 1), (1, 3), (2, 3)):
        loaders = [
            PointLoader(points(7), 4, accumulation_steps=steps, rank=rank, world_size=world) for rank in range(world)
        ]
        assert {(loader.steps_per_epoch, loader.samples_per_epoch) for loader in loaders} == {(4, 28)}
        for step in zip(*(loader.epoch(2) for loader in loaders), strict=True):
            batches = [batch for part in step for batch in part.batches]
            assert len(batches) == steps * world
            assert sorted(torch.cat([batch.indices for batch in batches]).tolist()) == list(range(7))
            assert all(
                torch.equal(batch.y, 10 + batch.indices) and torch.equal(batch.x, batch.y - 10) for batch in batches
            )
            assert (
                sum(float(batch.weights.sum()) for batch in batches) == step[0].normalizer == step[0].num_samples == 7
            )


def test_an_epoch_can_begin_in_its_middle() -> None:
    assert len(list(PointLoader(points(3), 5).epoch(0, start_step=2))) == 3


def test_more_micro_batches_than_points_are_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.train_points: 3 is not valid: there are 4 micro-batches"):
        PointLoader(points(3), 1, accumulation_steps=2, world_size=2)
