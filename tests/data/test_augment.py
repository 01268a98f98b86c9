"""`Augment` as a whole: the same for any division of a batch, every setting has an effect, wrong settings are named."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.augment_batches import NUM_CLASSES, augmented, batch_of, piece, random_batch
from vit.config import AugmentConfig, Preprocessing
from vit.data.augment import Augment, TwoViews
from vit.data.preprocessing import normalize

OWN: dict[str, dict[str, Any]] = {
    "none": {},
    "flip": {"flip": True},
    "pad": {"crop": "pad", "flip": True},
    "random resized": {"crop": "random_resized", "flip": True},
    "bicubic": {"crop": "random_resized", "interpolation": "bicubic"},
    "randaugment": {"policy": "randaugment", "magnitude_std": 0.5, "num_ops": 3},
    "autoaugment cifar": {"policy": "autoaugment_cifar10"},
    "autoaugment imagenet": {"policy": "autoaugment_imagenet"},
    "three augment": {"policy": "three_augment", "color_jitter": 0.3},
    "jitter": {"color_jitter": 0.5},
    "grey": {"grey_probability": 0.5},
    "erasing": {"erasing_probability": 0.7},
    "all": {
        "crop": "random_resized",
        "flip": True,
        "policy": "randaugment",
        "color_jitter": 0.3,
        "erasing_probability": 0.5,
    },
}
MIXES: dict[str, dict[str, Any]] = {
    "mixup": {"mixup_alpha": 0.8},
    "cutmix": {"cutmix_alpha": 1.0},
    "both": {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "mix_probability": 0.7},
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(("canvas", "side"), [(16, 16), (24, 16), ((16, 20), (16, 20))])
def test_a_samples_result_does_not_depend_on_its_batch(name: str, canvas: Any, side: Any) -> None:
    """Bit for bit."""
    batch = random_batch(23, canvas, first_position=40, aspect=1.0 if canvas != 24 else 1.3)
    images, targets = augmented(batch, side=side, **OWN[name])
    pieces = [augmented(piece(batch, *cut), side=side, **OWN[name]) for cut in ((0, 1), (1, 8), (8, 23))]
    assert torch.equal(images, torch.cat([part for part, _ in pieces]))
    assert torch.equal(targets, torch.cat([part for _, part in pieces]))


@pytest.mark.parametrize("name", MIXES)
def test_mixing_does_not_depend_on_the_division_into_whole_groups(name: str) -> None:
    """Bit for bit, the ragged last group included."""
    settings = MIXES[name] | OWN["all"]
    batch = random_batch(28, 16, first_position=16)
    images, targets = augmented(batch, side=16, **settings)
    for cuts in (((0, 16), (16, 28)), ((0, 8), (8, 16), (16, 24), (24, 28))):
        pieces = [augmented(piece(batch, *cut), side=16, **settings) for cut in cuts]
        assert torch.equal(images, torch.cat([part for part, _ in pieces]))
        assert torch.equal(targets, torch.cat([part for _, part in pieces]))


@pytest.mark.parametrize("name", [name for name in OWN if name != "none"])
def test_epoch_and_seed_change_the_result_and_nothing_else_does(name: str) -> None:
    batch = random_batch(24, 16)
    first = augmented(batch, side=16, **OWN[name])[0]
    torch.manual_seed(1)
    assert torch.equal(first, augmented(batch, side=16, **OWN[name])[0])
    assert not torch.equal(first, augmented(batch, side=16, epoch=1, **OWN[name])[0])
    assert not torch.equal(first, augmented(batch, side=16, seed=1, **OWN[name])[0])


@pytest.mark.parametrize("name", [*OWN, *MIXES])
@pytest.mark.parametrize("side", [8, 9])
def test_every_option_works_on_digits(name: str, side: int) -> None:
    batch = random_batch(60, 8)
    before = batch.images.clone()
    images, targets = augmented(batch, side=side, **(OWN | MIXES)[name])
    assert images.shape == (60, 3, side, side)
    assert images.dtype == targets.dtype == torch.float32
    assert targets.shape == (60, NUM_CLASSES)
    assert bool(images.isfinite().all())
    assert torch.allclose(targets.sum(dim=1), torch.ones(60))
    assert torch.equal(batch.images, before)
    assert not images.requires_grad


def test_without_augmentation_it_is_normalisation() -> None:
    batch = random_batch(5, 8)
    preprocessing = Preprocessing(image_size=(8, 8), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    images, targets = Augment(AugmentConfig(), preprocessing, NUM_CLASSES)(batch, seed=0, epoch=0)
    assert torch.equal(images, normalize(batch.images, preprocessing))
    assert targets.argmax(dim=1).tolist() == batch.labels.tolist()


BASE: dict[str, Any] = {
    "crop": "random_resized",
    "flip": True,
    "policy": "randaugment",
    "magnitude": 5.0,
    "color_jitter": 0.2,
    "erasing_probability": 0.3,
    "mixup_alpha": 0.8,
    "cutmix_alpha": 1.0,
}
CHANGES: dict[str, Any] = {
    "crop": "none",
    "pad": 2,
    "scale": (0.3, 0.6),
    "ratio": (1.0, 2.0),
    "interpolation": "bicubic",
    "flip": False,
    "policy": "autoaugment_cifar10",
    "num_ops": 3,
    "magnitude": 6.0,
    "magnitude_std": 1.0,
    "color_jitter": 0.4,
    "grey_probability": 0.5,
    "erasing_probability": 0.6,
    "mixup_alpha": 0.2,
    "cutmix_alpha": 0.3,
    "mix_probability": 0.5,
    "cutmix_probability": 0.9,
    "mix_group": 4,
}
ELSEWHERE = ("repeats", "first_image_size", "growing_epochs", "size_step")
"""Repeats belong to the order of an epoch; images that grow have tests of their own."""


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(AugmentConfig) if f.name not in ELSEWHERE])
def test_every_setting_has_an_effect(field: str) -> None:
    base = dict(BASE)
    if field == "pad":
        base["crop"] = "pad"
    if field == "policy":
        del base["magnitude"]
    batch = random_batch(32, 16)
    before, after = augmented(batch, side=16, **base), augmented(batch, side=16, **base | {field: CHANGES[field]})
    assert not torch.equal(before[0], after[0])


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"pad": 2}, "pad"),
        ({"scale": (0.5, 1.0)}, "scale"),
        ({"ratio": (1.0, 1.0), "crop": "pad"}, "ratio"),
        ({"interpolation": "bicubic"}, "interpolation"),
        ({"num_ops": 3}, "num_ops"),
        ({"magnitude": 5.0, "policy": "three_augment"}, "magnitude"),
        ({"magnitude_std": 0.5}, "magnitude_std"),
        ({"mix_probability": 0.5}, "mix_probability"),
        ({"mix_probability": 0.0, "mixup_alpha": 0.2}, "mix_probability"),
        ({"mix_group": 4}, "mix_group"),
        ({"cutmix_probability": 0.3, "cutmix_alpha": 1.0}, "cutmix_probability"),
        ({"cutmix_probability": 1.0, "cutmix_alpha": 1.0, "mixup_alpha": 1.0}, "cutmix_probability"),
    ],
)
def test_a_setting_without_effect_is_an_error(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=rf"^augment\.{field}: "):
        AugmentConfig(**settings)


@pytest.mark.parametrize(
    ("final", "patch", "expected"),
    [
        ((32, 32), (4, 4), [(16, 16), (20, 20), (24, 24), (28, 28), (32, 32)]),
        ((32, 32), (1, 1), [(16, 16), (20, 20), (24, 24), (28, 28), (32, 32)]),
        ((32, 16), (8, 8), [(16, 8), (16, 8), (24, 8), (24, 8), (32, 16)]),
    ],
)
def test_images_grow_in_whole_patches(final: Any, patch: Any, expected: list[tuple[int, int]]) -> None:
    config = AugmentConfig(first_image_size=16, growing_epochs=4)
    augment = Augment(config, Preprocessing(image_size=final), NUM_CLASSES, patch_size=patch)
    assert [augment.image_size(epoch) for epoch in range(5)] == expected
    assert augment.image_size(40) == final


@pytest.mark.parametrize(("patch", "step", "sides"), [(1, 8, [24, 24, 32, 40]), (12, 8, [24, 24, 24, 24])])
def test_images_grow_in_steps_of_their_own(patch: int, step: int, sides: list[int]) -> None:
    config = AugmentConfig(first_image_size=24, growing_epochs=4, size_step=step)
    augment = Augment(config, Preprocessing(image_size=(48, 48)), NUM_CLASSES, patch_size=(patch, patch))
    assert [augment.image_size(epoch) for epoch in range(5)] == [(side, side) for side in (*sides, 48)]


def test_a_first_size_below_the_step_is_refused() -> None:
    config = AugmentConfig(first_image_size=16, growing_epochs=2, size_step=8)
    message = r"^augment\.first_image_size: 16 is not valid: it must be at least 24, a multiple of patch and augment\."
    with pytest.raises(ValueError, match=message):
        Augment(config, Preprocessing(image_size=(48, 48)), NUM_CLASSES, patch_size=(12, 12))


@pytest.mark.parametrize("epochs", [1, 3, 4, 5, 40])
def test_epochs_are_counted_by_size(epochs: int) -> None:
    config = AugmentConfig(first_image_size=16, growing_epochs=4)
    augment = Augment(config, Preprocessing(image_size=(64, 32)), NUM_CLASSES, patch_size=(8, 8))
    assert augment.epochs_by_size(epochs) == Counter(augment.image_size(epoch) for epoch in range(epochs))


def test_a_trillion_epochs_are_counted_without_a_walk() -> None:
    config = AugmentConfig(first_image_size=16, growing_epochs=10**12 - 1)
    augment = Augment(config, Preprocessing(image_size=(32, 32)), NUM_CLASSES, patch_size=(8, 8))
    counts = augment.epochs_by_size(10**12)
    assert list(counts) == [(16, 16), (24, 24), (32, 32)]
    assert sum(counts.values()) == 10**12
    assert counts[32, 32] == 1


@pytest.mark.parametrize("name", OWN)
def test_a_small_image_is_the_large_one_resized(name: str) -> None:
    """Equal to the augmentation for a model of that size."""
    batch = random_batch(9, 24)
    grown = {"first_image_size": 16, "growing_epochs": 2}
    for epoch, side in enumerate((16, 20, 24)):
        small, _ = augmented(batch, side=24, epoch=epoch, **OWN[name] | grown)
        assert torch.equal(small, augmented(batch, side=side, epoch=epoch, **OWN[name])[0])


@pytest.mark.parametrize("first", [3, 16, 20])
def test_a_first_size_that_cannot_grow_is_refused(first: int) -> None:
    config = AugmentConfig(first_image_size=first, growing_epochs=2)
    with pytest.raises(ValueError, match=rf"^augment\.first_image_size: {first} is not valid: .*patch \(4\).*\(16\)"):
        Augment(config, Preprocessing(image_size=(16, 16)), NUM_CLASSES, patch_size=(4, 4))


def test_a_step_wider_than_the_image_is_refused() -> None:
    config = AugmentConfig(first_image_size=32, growing_epochs=2, size_step=32)
    with pytest.raises(ValueError, match=r"^augment\.size_step: 32 is not valid: .*\(32, 32\).*\(64, 16\)"):
        Augment(config, Preprocessing(image_size=(64, 16)), NUM_CLASSES, patch_size=(8, 8))


def test_padding_must_be_smaller_than_the_image() -> None:
    batch = batch_of(random_batch(2, (8, 4)).images)
    with pytest.raises(ValueError, match=r"augment\.pad: 4 is not valid: .*below the image's side \(4 pixels\)"):
        augmented(batch, side=(8, 4), crop="pad", pad=4)


@pytest.mark.cuda
@pytest.mark.parametrize("name", [*OWN, *MIXES])
def test_the_device_does_not_matter(name: str) -> None:
    """Bit for bit, except geometry and noise: `grid_sample` and the normal quantile round differently there."""
    settings = (OWN | MIXES)[name]
    batch = random_batch(32, 24, aspect=1.2)
    here, there = (augmented(batch.to(device), side=16, **settings) for device in ("cpu", "cuda"))
    distance = (here[0] - there[0].cpu()).abs()
    assert distance.median() == 0
    if "policy" not in settings and "erasing_probability" not in settings:
        assert distance.max() < 1e-3
    assert torch.allclose(here[1], there[1].cpu())


SMALL = Preprocessing(image_size=(16, 16))


def test_some_images_are_grey_and_the_others_untouched() -> None:
    """Grey ones as Pillow's mode L has them."""
    batch = random_batch(200, 16)
    images, _ = augmented(batch, side=16, grey_probability=0.25)
    plain, _ = augmented(batch, side=16)
    grey = (images[:, :1] == images).flatten(1).all(dim=1)
    assert 30 < int(grey.sum()) < 70
    assert torch.equal(images[~grey], plain[~grey])
    for index in torch.nonzero(grey).flatten()[:5].tolist():
        pillow = Image.fromarray(batch.images[index].permute(1, 2, 0).numpy()).convert("L").convert("RGB")
        expected = torch.from_numpy(np.asarray(pillow).copy()).permute(2, 0, 1)
        assert torch.equal(images[index].round(), expected.to(images.dtype))  # normalised, and back in levels


def test_two_views_are_independent_of_each_other_and_of_the_batch() -> None:
    config = AugmentConfig(crop="random_resized", flip=True, color_jitter=0.4, erasing_probability=0.5)
    batch = random_batch(40, 16)
    views, _ = TwoViews(config, SMALL, NUM_CLASSES)(batch, seed=3, epoch=1)
    assert views.shape == (40, 2, 3, 16, 16)
    assert not (views[:, 0] == views[:, 1]).flatten(1).all(dim=1).any()
    part, _ = TwoViews(config, SMALL, NUM_CLASSES)(piece(batch, 5, 12), seed=3, epoch=1)
    assert torch.equal(part, views[5:12])
    for other in ({"seed": 4, "epoch": 1}, {"seed": 3, "epoch": 2}):
        changed, _ = TwoViews(config, SMALL, NUM_CLASSES)(batch, **other)
        assert not any(torch.equal(changed[:, a], views[:, b]) for a in range(2) for b in range(2))
