"""Draws of the policies: tables against torchvision, strengths against timm and torchvision, frequencies, jitter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.transforms import AutoAugment
from torchvision.transforms.v2 import functional as V

from tests.data.augment_batches import random_batch
from vit.config import AugmentConfig
from vit.data.augment import policies
from vit.randomness import SampleRandom

TIMM_NAMES = {
    "Rotate": "Rotate",
    "Posterize": "PosterizeIncreasing",
    "Solarize": "SolarizeIncreasing",
    "SolarizeAdd": "SolarizeAdd",
    "Color": "ColorIncreasing",
    "Contrast": "ContrastIncreasing",
    "Brightness": "BrightnessIncreasing",
    "Sharpness": "SharpnessIncreasing",
    "ShearX": "ShearX",
    "ShearY": "ShearY",
    "TranslateX": "TranslateXRel",
    "TranslateY": "TranslateYRel",
}


def streams(count: int) -> SampleRandom:
    return SampleRandom.at(3, 1, torch.arange(count))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], torch.Tensor]]:
    """Names and arguments of each slot, instead of the operations themselves."""
    slots: list[tuple[list[str], torch.Tensor]] = []

    def record(images: torch.Tensor, kind: torch.Tensor, argument: torch.Tensor) -> torch.Tensor:
        names = [(*policies._NAMES, "Identity")[index] for index in kind.tolist()]
        slots.append((names, argument))
        return images

    monkeypatch.setattr(policies, "apply_operations", record)
    return slots


def test_the_autoaugment_tables_are_the_papers() -> None:
    """The first and the last row of the appendix; an operation without a strength has level 0."""
    cifar10, imagenet = policies.autoaugment_policy("cifar10"), policies.autoaugment_policy("imagenet")
    assert len(cifar10) == len(imagenet) == 25
    assert cifar10[0] == (("Invert", 0.1, 0), ("Contrast", 0.2, 6))
    assert cifar10[-1] == (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 0))
    assert imagenet[0] == (("Posterize", 0.4, 8), ("Rotate", 0.6, 9))
    assert imagenet[-1] == (("Equalize", 0.8, 0), ("Equalize", 0.6, 0))
    assert {name for table in (cifar10, imagenet) for pair in table for name, _, _ in pair} <= set(policies._NAMES)


def arguments(strengths: dict[str, policies.Strength], name: str, level: Tensor, negative: Tensor) -> Tensor:
    return policies._arguments(strengths, torch.full(level.shape, policies._NAMES.index(name)), level, negative)


def test_operations_without_a_strength_have_argument_0() -> None:
    nothing = torch.tensor([policies._IDENTITY, policies._NAMES.index("GaussianBlur")])
    level = torch.ones(2, dtype=torch.float64)
    assert policies._arguments(policies._RANDAUGMENT, nothing, level, level > 0).tolist() == [0, 0]


@pytest.mark.parametrize("name", TIMM_NAMES)
def test_randaugment_strengths_equal_timms(name: str) -> None:
    from timm.data.auto_augment import LEVEL_TO_ARG

    convert = LEVEL_TO_ARG[TIMM_NAMES[name]]
    for level in range(11):
        amount = torch.tensor([level / 10.0, level / 10.0], dtype=torch.float64)
        ours = arguments(policies._RANDAUGMENT, name, amount, torch.tensor([False, True])).tolist()
        theirs = {
            round(convert(level, {})[0] if isinstance(convert(level, {}), tuple) else convert(level, {}), 9)
            for _ in range(40)
        }
        assert {round(value, 9) for value in ours} == theirs


def test_autoaugment_strengths_equal_torchvisions() -> None:
    space = AutoAugment()._augmentation_space(10, (331, 331))
    for name, strength in policies._AUTOAUGMENT.items():
        magnitudes, signed = space[name]
        assert strength.signed == signed
        if magnitudes.ndim == 0:
            continue
        level = torch.arange(10, dtype=torch.float64) / 9
        ours = arguments(policies._AUTOAUGMENT, name, level, torch.zeros(10, dtype=torch.bool))
        scale = 331 if name.startswith("Translate") else 1
        no_change = 1 if name in ("Color", "Contrast", "Brightness", "Sharpness") else 0
        assert torch.allclose(ours * scale, magnitudes.double() + no_change, atol=1e-4)


def test_randaugment_draws_fifteen_operations_half_of_the_time(drawn: list[Any]) -> None:
    images = torch.zeros(6000, 3, 4, 4, dtype=torch.uint8)
    config = AugmentConfig(policy="randaugment", num_ops=3, magnitude=5)
    policies.apply_policy(images, streams(6000), config)
    assert len(drawn) == 3
    for names, _ in drawn:
        counts = {name: names.count(name) for name in set(names)}
        assert 2850 < counts.pop("Identity") < 3150
        assert len(counts) == 15
        assert all(130 < count < 270 for count in counts.values())
    assert drawn[0][0] != drawn[1][0]


def test_magnitude_and_its_spread(drawn: list[Any]) -> None:
    images = torch.zeros(6000, 3, 4, 4, dtype=torch.uint8)
    chosen: list[dict[str, Any]] = [
        {"magnitude": 5.0},
        {"magnitude": 5.0, "magnitude_std": 1.0},
        {"magnitude": 9.5, "magnitude_std": 2.0},
    ]
    for settings in chosen:
        policies.apply_policy(images, streams(6000), AugmentConfig(policy="randaugment", num_ops=1, **settings))
    angles = [argument[[name == "Rotate" for name in names]] for names, argument in drawn]
    assert set(angles[0].tolist()) == {15.0, -15.0}
    assert abs(angles[1].abs().mean() - 15) < 0.8
    assert abs(angles[1].abs().std() - 3) < 0.6
    assert angles[2].abs().max() == 30
    assert all(0.35 < (angle > 0).double().mean() < 0.65 for angle in angles)


def test_autoaugment_applies_pairs_with_their_probabilities(drawn: list[Any]) -> None:
    images = torch.zeros(20000, 3, 4, 4, dtype=torch.uint8)
    policies.apply_policy(images, streams(20000), AugmentConfig(policy="autoaugment_imagenet"))
    assert len(drawn) == 2
    for slot, (names, _) in enumerate(drawn):
        for name in ("Posterize", "Rotate", "Equalize", "Invert"):
            expected = (
                sum(pair[slot][1] for pair in policies.autoaugment_policy("imagenet") if pair[slot][0] == name) / 25
            )
            assert abs(names.count(name) / 20000 - expected) < 0.015
    first, second = drawn[0][0], drawn[1][0]
    follows_shear = {after for before, after in zip(first, second, strict=True) if before == "ShearX"}
    assert follows_shear == {"Equalize"}


def test_three_augment_draws_each_third(drawn: list[Any]) -> None:
    images = torch.zeros(6000, 3, 4, 4, dtype=torch.uint8)
    policies.apply_policy(images, streams(6000), AugmentConfig(policy="three_augment"))
    ((names, argument),) = drawn
    of = {name: argument[[drawn_name == name for drawn_name in names]] for name in set(names)}
    assert {name: 1850 < len(arguments) < 2150 for name, arguments in of.items()} == dict.fromkeys(
        ("Color", "Solarize", "GaussianBlur"), True
    )
    assert set(of["Color"].tolist()) == {0.0}
    assert set(of["Solarize"].tolist()) == {128.0}
    assert 0.1 <= of["GaussianBlur"].min() < 0.12
    assert 1.98 < of["GaussianBlur"].max() <= 2.0


def test_operations_reach_only_the_samples_that_drew_them() -> None:
    images = random_batch(40, 12).images
    kind = torch.arange(40) % (len(policies._NAMES) + 1)
    argument = torch.full((40,), 0.5, dtype=torch.float64)
    before = images.clone()
    result = policies.apply_operations(images, kind, argument)
    assert torch.equal(images, before)
    for i in range(40):
        alone = policies.apply_operations(images[i : i + 1], kind[i : i + 1], argument[i : i + 1])
        assert torch.equal(result[i : i + 1], alone)
    identity = kind == len(policies._NAMES)
    assert torch.equal(result[identity], images[identity])
    changed = (result != images).flatten(1).any(dim=1)
    assert bool(changed[policies._NAMES.index("Invert")])


def test_jitter_equals_torchvision_in_the_drawn_order() -> None:
    images = random_batch(24, 9).images
    rng = streams(24)
    ours = policies.jitter_colors(images, rng, 0.4)
    order = rng.fork("jitter order").uniform(3).argsort(dim=1).tolist()
    factors = (0.6 + 0.8 * rng.fork("jitter").uniform(3)).tolist()
    adjust = (V.adjust_brightness, V.adjust_contrast, V.adjust_saturation)
    for i in range(24):
        image = images[i]
        for kind in order[i]:
            image = adjust[kind](image, factors[i][kind])
        assert (ours[i].int() - image.int()).abs().max() <= 3
    assert len({tuple(row) for row in order}) == 6


def test_jitter_of_more_than_one_never_inverts() -> None:
    grey = torch.full((50, 3, 4, 4), 200, dtype=torch.uint8)
    assert policies.jitter_colors(grey, streams(50), 2.0).float().mean() > 100
