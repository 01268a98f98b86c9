"""The learning rate against values by hand, and its independence of how images are divided into steps."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from vit.config import OptimConfig
from vit.training.schedule import has_followed, learning_rate, rate_curve, warmup_samples

EPOCH, TOTAL, STEPS_PER_EPOCH = 100, 1000, 20


def rate(images: int, **settings: object) -> float:
    config = OptimConfig(lr=0.4, **settings)  # type: ignore[arg-type]
    return learning_rate(images, TOTAL, warmup_samples(EPOCH, STEPS_PER_EPOCH, TOTAL // EPOCH, config), config)


def rates_of_steps(*, batch: int, steps: int, epochs: int = 1, **settings: object) -> list[float]:
    config = OptimConfig(lr=0.4, schedule="constant", **settings)  # type: ignore[arg-type]
    warmup = warmup_samples(batch * steps, steps, epochs, config)
    return [learning_rate(batch * n, batch * steps * epochs, warmup, config) for n in range(steps * epochs)]


def test_warm_up_is_linear_from_zero() -> None:
    assert [rate(images, warmup_epochs=2) for images in (0, 50, 100, 150, 200)] == pytest.approx(
        [0, 0.1, 0.2, 0.3, 0.4]
    )


def test_cosine() -> None:
    assert rate(0) == 0.4
    assert rate(250) == pytest.approx(0.2 * (1 + math.sqrt(0.5)))
    assert rate(500) == pytest.approx(0.2)
    assert rate(1000) == pytest.approx(0, abs=1e-12)
    assert rate(600, warmup_epochs=2, min_lr=0.1) == pytest.approx(0.25)
    assert rate(1000, min_lr=0.1) == pytest.approx(0.1)


def test_linear() -> None:
    assert [rate(images, schedule="linear") for images in (0, 250, 500, 1000)] == pytest.approx([0.4, 0.3, 0.2, 0])
    assert rate(600, schedule="linear", warmup_epochs=2, min_lr=0.1) == pytest.approx(0.25)


def test_constant() -> None:
    assert {rate(images, schedule="constant") for images in (0, 1, 999, 1000)} == {0.4}
    assert rate(50, schedule="constant", warmup_epochs=1) == pytest.approx(0.2)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_nothing_rises_after_the_warm_up_or_goes_below_the_least(schedule: str) -> None:
    rates = [rate(images, schedule=schedule, warmup_epochs=1.5, min_lr=0.01) for images in range(150, 1001, 10)]
    assert rates[0] == pytest.approx(0.4)
    assert all(a >= b >= 0.01 - 1e-12 for a, b in pairwise(rates))


@pytest.mark.parametrize("schedule", ["cosine", "linear", "inverse_sqrt", "constant"])
def test_a_warm_up_that_lasts_the_whole_run_reaches_the_full_rate_in_the_last_step(schedule: str) -> None:
    """Which begins at 995; halfway there the rate is half."""
    assert rate(995, warmup_epochs=10, schedule=schedule) == pytest.approx(0.4)
    assert rate(995 // 2, warmup_epochs=10, schedule=schedule) == pytest.approx(0.4 * 497 / 995)
    assert math.isfinite(rate(1000, warmup_epochs=10, schedule=schedule))


@pytest.mark.parametrize("warmup_epochs", [0.1, 0.5, 1.0])
def test_the_only_step_of_a_run_has_the_full_rate(warmup_epochs: float) -> None:
    assert rates_of_steps(batch=8, steps=1, warmup_epochs=warmup_epochs) == [0.4]


def test_a_warm_up_shorter_than_a_step_is_none() -> None:
    assert rates_of_steps(batch=8, steps=4, warmup_epochs=0.2) == [0.4] * 4
    assert rates_of_steps(batch=8, steps=4, warmup_epochs=0.25) == [0, 0.4, 0.4, 0.4]


def test_the_steps_of_a_warm_up() -> None:
    assert rates_of_steps(batch=8, steps=4, warmup_epochs=0.5) == [0, 0.2, 0.4, 0.4]
    assert rates_of_steps(batch=8, steps=3, warmup_epochs=1) == [0, 0.2, 0.4]
    assert rates_of_steps(batch=8, steps=1, epochs=3, warmup_epochs=1) == [0, 0.4, 0.4]


def test_the_inverse_square_root_falls_from_the_end_of_the_warm_up() -> None:
    assert rate(400, warmup_epochs=1, schedule="inverse_sqrt") == pytest.approx(0.2)
    one_step = OptimConfig(lr=0.4, warmup_epochs=1, schedule="inverse_sqrt")
    assert learning_rate(0, 8, warmup_samples(8, 1, 1, one_step), one_step) == 0.4


def test_the_rate_at_an_image_is_the_same_for_any_batch() -> None:
    curves = {
        batch: {images: rate(images, warmup_epochs=1) for images in range(0, TOTAL, batch)} for batch in (10, 20, 50)
    }
    for batch, curve in curves.items():
        assert all(curves[10][images] == value for images, value in curve.items()), batch


def test_the_curve_holds_both_ends_and_the_peak() -> None:
    config = OptimConfig(lr=0.4, warmup_epochs=1.5)
    seen, rates = rate_curve(TOTAL, 150, config, num_points=4)
    assert seen == [0, 150, 333, 667, 1000]
    assert rates == [learning_rate(each, TOTAL, 150, config) for each in seen]
    assert rates[1] == 0.4


def test_rates_of_a_run_that_was_continued_to_more_epochs_are_of_two_schedules() -> None:
    config = OptimConfig(lr=0.4, warmup_epochs=1)
    steps = range(32, TOTAL + 1, 32)

    def logged(total: int) -> list[dict[str, float]]:  # every second step of 32 images
        return [
            {"images_seen": seen, "lr": learning_rate(seen - 32, total, EPOCH, config)} | {"step": seen // 32}
            for seen in steps[::2]
        ]

    history = [{"images_seen": 0, "val.top1": 0.1}, *logged(TOTAL)]
    assert has_followed(history, "images_seen", TOTAL, EPOCH, config)
    assert not has_followed([*logged(TOTAL // 2)[:8], *logged(TOTAL)[8:]], "images_seen", TOTAL, EPOCH, config)
    assert has_followed([], "images_seen", TOTAL, EPOCH, config)
