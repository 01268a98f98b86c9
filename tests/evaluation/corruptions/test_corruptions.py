"""Corruptions against results by hand, against the original's arithmetic, and their documented properties."""

from __future__ import annotations

import math
from io import BytesIO

import numpy as np
import pytest
import torch
from einops import rearrange
from PIL import Image
from scipy import ndimage, stats

from vit.evaluation.corruptions import _OPERATIONS, KINDS, STRENGTHS, blur, corrupt, digital, noise, weather
from vit.evaluation.corruptions.strengths import CIFAR, IMAGENET, TINY_IMAGENET, strengths_for_size
from vit.randomness import SampleRandom

NOT_GROWING = {"snow", "elastic_transform", "frost"}
"""By ImageNet-C's own constants: snow's third strength has fewer flakes than its second, elastic transform moves the
corners of the image less from its third strength on, but waves the rest, and frost darkens the image as its ice grows,
so that the two errors partly cancel.
"""


def photograph(side: int, name: str = "china.jpg") -> torch.Tensor:
    from sklearn.datasets import load_sample_image

    image = Image.fromarray(load_sample_image(name)).crop((100, 0, 527, 427))
    return rearrange(torch.from_numpy(np.array(image.resize((side, side)))), "h w c -> 1 c h w")


def rng(*indices: int) -> SampleRandom:
    return SampleRandom.at(3, 1, torch.tensor(indices))


def test_every_kind_has_five_strengths_of_three_sizes() -> None:
    for table in (IMAGENET, TINY_IMAGENET, CIFAR):
        assert tuple(table) == KINDS
        assert len(KINDS) == 15
        assert all(len(strengths) == 5 for strengths in table.values())
    assert strengths_for_size(32) is strengths_for_size(44) is CIFAR
    assert strengths_for_size(64) is TINY_IMAGENET
    assert strengths_for_size(224) is strengths_for_size(256) is IMAGENET


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_is_corrupted_alike_in_any_batch(kind: str) -> None:
    images = torch.cat([photograph(48), photograph(48, "flower.jpg"), photograph(48).flip(3)])
    together = corrupt(images, kind, 4, indices=torch.tensor([11, 4, 7]), seed=5)
    alone = corrupt(images[1:2], kind, 4, indices=torch.tensor([4]), seed=5)
    assert together.dtype == torch.uint8
    assert together.shape == images.shape
    assert torch.equal(together[1:2], alone)
    random = kind not in ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")
    for options in ({"indices": torch.tensor([5])}, {"indices": torch.tensor([4]), "seed": 6}):
        other = corrupt(images[1:2], kind, 4, **options)
        assert torch.equal(other, alone) != random


@pytest.mark.parametrize("kind", KINDS)
def test_it_takes_images_that_are_not_square(kind: str) -> None:
    images = photograph(96)[..., :70]
    assert corrupt(images, kind, 5, indices=torch.tensor([0])).shape == images.shape


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NOT_GROWING])
def test_the_error_grows_with_strength(kind: str) -> None:
    """Mean squared error against the clean image, ImageNet-C's constants, the same random numbers at every strength."""
    images = photograph(112, "flower.jpg").repeat(4, 1, 1, 1) / 255
    errors = []
    for strength in STRENGTHS:
        corrupted = _OPERATIONS[kind](images, rng(*range(4)), *IMAGENET[kind][strength - 1])
        errors.append(float((corrupted.clamp(0, 1) - images).square().mean()))
    assert errors == sorted(errors)
    assert errors[0] > 1e-4
    assert len(set(errors)) == 5


def test_frost_hides_ever_more_of_the_image() -> None:
    images = photograph(112, "flower.jpg").repeat(4, 1, 1, 1) / 255
    likeness = []
    for constants in IMAGENET["frost"]:
        frozen = weather.frost(images, rng(*range(4)), *constants).clamp(0, 1)
        likeness.append(float(torch.corrcoef(torch.stack([images.flatten(), frozen.flatten()]))[0, 1]))
    assert likeness == sorted(likeness, reverse=True)


def test_what_does_not_exist_is_refused() -> None:
    images, indices = photograph(32), torch.tensor([0])
    with pytest.raises(ValueError, match="corruption: 'frosty' is not valid: did you mean 'frost'"):
        corrupt(images, "frosty", 1, indices=indices)
    with pytest.raises(ValueError, match="strength: 6 is not valid"):
        corrupt(images, "frost", 6, indices=indices)
    with pytest.raises(ValueError, match="'31 pixels' is not valid: their sides must have at least 32"):
        corrupt(images[..., :31], "frost", 1, indices=indices)


def test_noise_has_the_moments_of_its_distribution() -> None:
    grey = torch.full((1, 3, 200, 200), 128 / 255)
    gaussian = noise.gaussian_noise(grey, rng(0), 0.1) - grey
    assert float(gaussian.mean()) == pytest.approx(0, abs=0.002)
    assert float(gaussian.std()) == pytest.approx(0.1, rel=0.02)
    salted = noise.impulse_noise(grey, rng(0), 0.2)
    assert float((salted == 1).float().mean()) == pytest.approx(0.1, abs=0.005)
    assert float((salted == 0).float().mean()) == pytest.approx(0.1, abs=0.005)
    for level in (0, 9, 128, 255):
        counts = noise.shot_noise(torch.full((1, 3, 100, 100), level / 255), rng(0), 12) * 12
        found = np.bincount(counts.round().to(torch.int64).flatten().numpy(), minlength=40) / counts.numel()
        np.testing.assert_allclose(found[:40], stats.poisson.pmf(np.arange(40), 12 * level / 255), atol=0.01)


def test_a_point_becomes_a_disk() -> None:
    point = torch.zeros(1, 1, 41, 41)
    point[..., 20, 20] = 1
    disk = blur.defocus_blur(point, rng(0), 4, 0.1)[0, 0]
    rows, columns = np.indices((41, 41)) - 20
    inside = rows**2 + columns**2 <= 16
    np.testing.assert_allclose(disk.numpy(), inside / inside.sum(), atol=1e-6)


def test_gaussian_filter_is_scipys() -> None:
    values = rng(0).uniform(1, 37, 50)
    for border, mode in (("nearest", "nearest"), ("reflect", "reflect")):
        for deviation in (0.7, 3.1, 30.0):
            expected = ndimage.gaussian_filter(values[0, 0].double().numpy(), deviation, mode=mode, truncate=3)
            found = blur.gaussian_filter(values, deviation, border=border, cut_off=3)[0, 0]
            np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_glass_moves_pixels_as_far_as_swapping_one_by_one() -> None:
    """The original's order, written out; both lose as much and neither loses a value."""
    values = rng(0).uniform(1, 60, 60)
    places = torch.arange(3600).repeat(1, 1)
    blur._exchange(places, (60, 60), 3, rng(1))
    assert torch.equal(places.sort().values[0], torch.arange(3600))
    ours = (places[0] // 60 - torch.arange(3600) // 60).abs().float()

    order, generator = np.arange(3600).reshape(60, 60), np.random.default_rng(0)
    for row in range(57, 3, -1):
        for column in range(57, 3, -1):
            right, down = generator.integers(-3, 3, 2)
            there = row + down, column + right
            order[row, column], order[there] = order[there], order[row, column]
    theirs = np.abs(order // 60 - np.arange(60)[:, None])
    assert float(ours.mean()) == pytest.approx(theirs.mean(), rel=0.15)
    assert float((ours > 5).float().mean()) == pytest.approx((theirs > 5).mean(), abs=0.03)
    assert values.shape == (1, 1, 60, 60)


def test_a_trail_goes_one_way_and_fades() -> None:
    """Half a Gaussian to the left of where the point looks: each pixel takes from its right, for an angle of 0."""
    point = torch.zeros(2, 1, 21, 21)
    point[..., 10, 10] = 1
    found = blur.motion_trail(point, 3, 2.0, torch.tensor([0.0, 90.0]))
    weights = np.exp(-0.5 * (np.arange(7) / 2) ** 2)
    np.testing.assert_allclose(found[0, 0, 10, 4:11].numpy(), (weights / weights.sum())[::-1], atol=1e-6)
    np.testing.assert_allclose(found[1, 0, 4:11, 10].numpy(), (weights / weights.sum())[::-1], atol=1e-6)
    assert float(found.sum()) == pytest.approx(2)


def test_zoom_is_scipys_of_the_centre() -> None:
    values = rng(0).uniform(1, 40, 40)
    kept = math.ceil(40 / 1.3)
    top = (40 - kept) // 2
    larger = ndimage.zoom(values[0, 0, top : top + kept, top : top + kept].double().numpy(), 1.3, order=1)
    trim = (len(larger) - 40) // 2
    found = blur.zoom_in(values, 1.3)[0, 0]
    np.testing.assert_allclose(found.numpy(), larger[trim : trim + 40, trim : trim + 40], atol=1e-5)


def test_fog_on_black_is_the_clouds_alone_and_rough() -> None:
    clouds = weather.plasma(rng(0, 1), (48, 70), 2.0)
    assert clouds.shape == (2, 1, 48, 70)
    assert not torch.equal(clouds[0], clouds[1])
    whole = weather.plasma(rng(0), (64, 64), 2.0)
    assert float(whole.min()) == 0
    assert float(whole.max()) == 1
    steps = [float((weather.plasma(rng(0), (64, 64), decay).diff(dim=3)).abs().mean()) for decay in (1.2, 2.0, 3.0)]
    assert steps[0] > steps[1] > steps[2]
    white = torch.ones(1, 3, 64, 64)
    assert float(weather.fog(white, rng(0), 2.0, 2.0).max()) == pytest.approx(1)
    assert float(weather.fog(white, rng(0), 2.0, 2.0).min()) == pytest.approx(1 / 3)


def test_ice_is_cold_and_bright_at_any_size() -> None:
    for side in (32, 64, 224):
        pane = weather.ice(rng(0), (side, side))
        red, green, blue = pane.mean(dim=(0, 2, 3))
        assert red < green < blue
        assert 0.5 < float(pane.mean()) < 0.75
        assert float(pane.std()) > 0.08


def test_brightness_keeps_hue_and_saturation() -> None:
    import colorsys

    colours = torch.tensor([[0.2, 0.4, 0.1], [0.9, 0.3, 0.6], [0.0, 0.0, 0.0]])
    found = weather.brightness(colours.T[None, :, None], rng(0), 0.3)[0, :, 0].T
    for before, after in zip(colours.tolist(), found.tolist(), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*before)
        np.testing.assert_allclose(after, colorsys.hsv_to_rgb(hue, saturation, min(1, value + 0.3)), atol=1e-6)


def test_contrast_by_hand() -> None:
    pixels = torch.tensor([0.0, 1.0])[None, None, None].expand(1, 3, 1, 2)
    np.testing.assert_allclose(weather.contrast(pixels, rng(0), 0.1)[0, 0, 0], [0.45, 0.55], atol=1e-6)


def test_elastic_without_displacement_or_jitter_is_the_image() -> None:
    image = photograph(64).float() / 255
    torch.testing.assert_close(digital.elastic_transform(image, rng(0), 0.0, 2.0, 0.0), image, atol=2e-4, rtol=0)
    moved = digital._affine((64, 64), rng(0), 5.0)
    reach = torch.tensor([[32 + 21.0, 32 + 21, 1], [32 + 21, 32 - 21, 1], [32 - 21, 32 - 21, 1]])
    assert float(((reach @ moved[0]) - reach[:, :2]).abs().max()) < 12


def test_pillow_does_the_coarse_pixels_and_the_compression() -> None:
    image = photograph(64)
    picture = Image.fromarray(rearrange(image[0], "c h w -> h w c").numpy())
    small = picture.resize((38, 38), Image.Resampling.BOX).resize((64, 64), Image.Resampling.BOX)
    file = BytesIO()
    picture.save(file, "JPEG", quality=40)
    for kind, expected in (("pixelate", small), ("jpeg_compression", Image.open(file))):
        found = corrupt(image, kind, 4, indices=torch.tensor([0]))[0]
        assert np.array_equal(rearrange(found, "c h w -> h w c").numpy(), np.asarray(expected))
