"""Corruptions against results by hand, against the original's arithmetic, and their documented properties."""

from __future__ import annotations

import math
from io import BytesIO
from typing import Literal

import numpy as np
import pytest
import torch
from einops import rearrange
from PIL import Image
from scipy import ndimage, stats

from vit.evaluation.corruptions import _OPERATIONS, KINDS, SEVERITIES, blur, corrupt, digital, noise, weather
from vit.evaluation.corruptions.severities import CIFAR, IMAGENET, TINY_IMAGENET, severities_for_size
from vit.randomness import SampleRandom

NOT_GROWING = {"snow", "elastic_transform", "frost", "glass_blur"}
"""By ImageNet-C's own constants: snow's third severity has fewer flakes than its second, elastic transform moves the
corners of the image less from its third severity on, but waves the rest, frost darkens the image as its ice grows, so
that the two errors partly cancel, and glass blur's second severity has one pass, its first and fourth two, its third
three (`ORIGINAL`).
"""


def photograph(side: int, name: str = "china.jpg") -> torch.Tensor:
    from sklearn.datasets import load_sample_image

    image = Image.fromarray(load_sample_image(name)).crop((100, 0, 527, 427))
    return rearrange(torch.from_numpy(np.array(image.resize((side, side)))), "h w c -> 1 c h w")


def rng(*indices: int) -> SampleRandom:
    return SampleRandom.at(3, 1, torch.tensor(indices))


def test_every_kind_has_five_severities_of_three_sizes() -> None:
    for table in (IMAGENET, TINY_IMAGENET, CIFAR):
        assert tuple(table) == KINDS
        assert len(KINDS) == 15
        assert all(len(severities) == 5 for severities in table.values())
    assert severities_for_size(32) is severities_for_size(44) is CIFAR
    assert severities_for_size(64) is TINY_IMAGENET
    assert severities_for_size(224) is severities_for_size(256) is IMAGENET


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
def test_the_error_grows_with_severity(kind: str) -> None:
    """Mean squared error against the clean image, ImageNet-C's constants, the same random numbers at every severity."""
    images = photograph(112, "flower.jpg").repeat(4, 1, 1, 1) / 255
    errors = []
    for severity in SEVERITIES:
        corrupted = _OPERATIONS[kind](images, rng(*range(4)), *IMAGENET[kind][severity - 1])
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
    with pytest.raises(ValueError, match="severity: 6 is not valid"):
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


@pytest.mark.parametrize(("radius", "softness"), IMAGENET["defocus_blur"])
def test_the_disk_is_softened_as_opencv_does(radius: float, softness: float) -> None:
    """`cv2.GaussianBlur` mirrors at the border, without repeating it: scipy's `mirror`."""
    point = torch.zeros(1, 1, 61, 61)
    point[..., 30, 30] = 1
    reach = max(8, int(radius))
    rows, columns = np.indices((2 * reach + 1, 2 * reach + 1)) - reach
    disk = (rows**2 + columns**2 <= radius**2).astype(float)
    expected = ndimage.gaussian_filter(disk / disk.sum(), softness, mode="mirror", radius=1 if radius <= 8 else 2)
    found = blur.defocus_blur(point, rng(0), radius, softness)[0, 0, 30 - reach : 31 + reach, 30 - reach : 31 + reach]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


def test_gaussian_filter_is_scipys() -> None:
    values = rng(0).uniform(1, 37, 50)
    borders: tuple[Literal["nearest", "reflect"], ...] = ("nearest", "reflect")
    for border in borders:
        for deviation in (0.7, 3.1, 30.0):
            expected = ndimage.gaussian_filter(values[0, 0].double().numpy(), deviation, mode=border, truncate=3)
            found = blur.gaussian_filter(values, deviation, border=border, cut_off=3)[0, 0]
            np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_glass_copies_one_pixel_after_another(reach: int) -> None:
    """The original's loop, written out, with its views: `x[a], x[b] = x[b], x[a]` of an array of colours."""
    height, width = 23, 31
    places = torch.arange(height * width).repeat(2, 1)
    moves = rng(1, 2).integers(2 * reach, 2, height, width) - reach
    blur.copy_from_near(places, moves, reach)
    for index in range(2):
        pixels = np.arange(height * width).reshape(height, width, 1)
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                down, right = moves[index, :, row, column].tolist()
                there = row + down, column + right
                pixels[row, column], pixels[there] = pixels[there], pixels[row, column]
        np.testing.assert_array_equal(places[index].numpy(), pixels.ravel())


ORIGINAL: dict[str, tuple[tuple[float, float], ...]] = {
    "defocus_blur": ((142.61, 315.6), (142.63, 394.3), (142.63, 526.3), (144.41, 610.8), (144.12, 694.4)),
    "zoom_blur": ((142.45, 568.0), (142.44, 719.0), (142.47, 788.0), (142.52, 910.4), (142.62, 1004.4)),
    "brightness": ((159.22, 338.5), (172.71, 1238.7), (183.97, 2482.4), (194.20, 4071.2), (203.40, 5908.5)),
    "contrast": ((142.59, 2486.5), (142.63, 3384.6), (142.56, 4421.4), (142.62, 5596.5), (142.61, 6239.9)),
    "pixelate": ((143.51, 152.2), (143.60, 187.6), (143.32, 260.7), (143.24, 342.1), (143.38, 391.0)),
    "glass_blur": ((142.54, 387.5), (142.41, 368.4), (143.10, 667.1), (142.85, 598.3), (142.76, 655.0)),
}
"""Mean level, and mean squared error from the clean image, at five severities by imagecorruptions 1.1.2 (the code of
ImageNet-C) with OpenCV 5.0 and scikit-image 0.26, of the photograph with 224 pixels; glass blur's of five seeds.
"""


@pytest.mark.parametrize("kind", ORIGINAL)
def test_levels_and_errors_are_the_originals(kind: str) -> None:
    image = photograph(224)
    for severity, (level, error) in zip(SEVERITIES, ORIGINAL[kind], strict=True):
        found = corrupt(image.expand(4, -1, -1, -1), kind, severity, indices=torch.arange(4)).double()
        assert float(found.mean()) == pytest.approx(level, abs=0.5 if kind == "glass_blur" else 0.1)
        squared = float((found - image).square().mean())
        assert squared == pytest.approx(error, rel=0.02 if kind == "glass_blur" else 0.003)


def test_glass_blurs_small_images_as_the_original_does() -> None:
    """The original's squared errors, as above, of the photograph with 32 pixels, where each pixel's way weighs most."""
    image = photograph(32)
    for severity, error in zip(SEVERITIES, (449.0, 435.0, 365.0, 866.0, 749.0), strict=True):
        found = corrupt(image.expand(64, -1, -1, -1), "glass_blur", severity, indices=torch.arange(64)).double()
        assert float((found - image).square().mean()) == pytest.approx(error, rel=0.02)


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
