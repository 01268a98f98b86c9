"""Crops and flips: where each pixel came from, parity with torchvision, and the distribution of boxes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as V

from tests.data.augment_batches import NUM_CLASSES, PLAIN, augmented, batch_of, coded_images, random_batch
from vit.config import AugmentConfig, Interpolation, Preprocessing
from vit.data.augment import Augment
from vit.data.augment.crops import evaluation_boxes, random_resized_boxes, shift_reflected
from vit.data.augment.resampling import blur_weights, resample, resize_weights
from vit.data.preprocessing import normalize, resize_and_crop
from vit.randomness import SampleRandom

STREAMS = SampleRandom.at(0, 0, torch.arange(4000))


def test_shift_by_hand() -> None:
    row = torch.tensor([10, 20, 30, 40], dtype=torch.uint8).expand(3, 3, 4, 4).contiguous()
    offsets = torch.tensor([[0, 2], [0, -3], [0, 1]])
    shifted = shift_reflected(row, offsets, torch.tensor([False, False, True]))
    assert shifted[0, 0, 0].tolist() == [30, 40, 30, 20]
    assert shifted[1, 0, 0].tolist() == [40, 30, 20, 10]
    assert shifted[2, 0, 0].tolist() == [30, 40, 30, 20]


def test_pad_crop_is_a_window_of_the_reflected_image() -> None:
    images = random_batch(40, (9, 7)).images
    windows, _ = augmented(batch_of(images), side=(9, 7), crop="pad", pad=3)
    padded = F.pad(images.float(), (3, 3, 3, 3), mode="reflect")
    places = set()
    for image, window in zip(padded, windows.round(), strict=True):
        found = [
            (top, left)
            for top in range(7)
            for left in range(7)
            if torch.equal(image[:, top : top + 9, left : left + 7], window)
        ]
        assert len(found) == 1
        places.add(found[0])
    assert {top for top, _ in places} == {left for _, left in places} == set(range(7))


def test_a_flipped_pixel_comes_from_the_mirrored_column() -> None:
    images = coded_images(200, 5, 6)
    flipped, _ = augmented(batch_of(images), side=(5, 6), flip=True)
    sample, row, column = flipped.round().to(torch.int64).unbind(dim=1)
    assert torch.equal(sample, images[:, 0].to(torch.int64))
    assert torch.equal(row, images[:, 1].to(torch.int64))
    was_flipped = column[:, 0, 0] == 5
    expected = torch.where(was_flipped[:, None, None], 5 - images[:, 2].long(), images[:, 2].long())
    assert torch.equal(column, expected)
    assert 70 < was_flipped.sum() < 130


@pytest.mark.parametrize("canvas", [8, 16])
@pytest.mark.parametrize("settings", [{}, {"crop": "pad"}, {"crop": "random_resized"}])
def test_flip_rate_and_composition_with_the_crop(settings: dict[str, Any], canvas: int) -> None:
    images = coded_images(200, canvas, canvas)
    straight, _ = augmented(batch_of(images), side=8, **settings)
    flipped, _ = augmented(batch_of(images), side=8, flip=True, **settings)
    same = (straight == flipped).flatten(1).all(dim=1)
    mirrored = (straight.flip(-1) == flipped).flatten(1).all(dim=1)
    assert bool((same | mirrored).all())
    assert 70 < (mirrored & ~same).sum() < 130


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(8, 8), (20, 31), (64, 48)])
def test_resampling_equals_torchvision_resized_crop(filter: str, size: tuple[int, int]) -> None:
    """uint8 with antialiasing: at most one level apart."""
    images = random_batch(5, (37, 41)).images
    top, left = torch.tensor([0, 3, 10, 30, 0]), torch.tensor([0, 5, 1, 20, 40])
    height, width = torch.tensor([37, 20, 5, 7, 30]), torch.tensor([41, 30, 40, 3, 1])
    rows = resize_weights(top, height, 37, size[0], filter=filter, antialias=True)  # type: ignore[arg-type]
    columns = resize_weights(left, width, 41, size[1], filter=filter, antialias=True)  # type: ignore[arg-type]
    ours = resample(images, rows, columns)
    for i in range(5):
        box = [int(part[i]) for part in (top, left, height, width)]
        theirs = V.resized_crop(images[i], *box, list(size), InterpolationMode(filter), antialias=True)
        assert (ours[i].int() - theirs.int()).abs().max() <= 1


def test_bilinear_without_antialiasing_and_nearest_equal_torch() -> None:
    images = random_batch(2, 32).images
    whole, zero = torch.full((2,), 32), torch.zeros(2, dtype=torch.int64)
    for filter, mode in (("bilinear", "bilinear"), ("nearest", "nearest-exact")):
        weights = resize_weights(zero, whole, 32, 12, filter=filter, antialias=False)  # type: ignore[arg-type]
        ours = resample(images, weights, weights).float()
        settings = {"align_corners": False} if mode == "bilinear" else {}
        theirs = F.interpolate(images.float(), (12, 12), mode=mode, **settings)
        assert (ours - theirs.round()).abs().max() <= (1 if filter == "bilinear" else 0)


def test_blur_equals_torchvision_inside_and_repeats_the_border() -> None:
    images = random_batch(3, 24).images
    sigma = torch.tensor([0.3, 1.0, 2.0])
    weights = blur_weights(sigma, 24, radius=6)
    ours = resample(images, weights, weights)
    for i in range(3):
        padded = F.pad(images[i].float()[None], (6, 6, 6, 6), mode="replicate")
        theirs = V.gaussian_blur(padded, [13, 13], [float(sigma[i])])[0, :, 6:-6, 6:-6]
        assert (ours[i] - theirs).abs().max() <= 1


def test_boxes_follow_torchvisions_distribution() -> None:
    scale, ratio = (0.08, 1.0), (0.75, 4 / 3)
    boxes = random_resized_boxes(STREAMS, (40, 64), torch.ones(4000), scale=scale, ratio=ratio)
    ours = torch.stack([boxes.top, boxes.left, boxes.height, boxes.width], dim=1).double()
    image = torch.empty(3, 40, 64)
    torch.manual_seed(0)
    draws = [RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(4000)]
    theirs = torch.tensor(draws).double()
    error = (theirs.var(0) / 4000 + ours.var(0) / 4000).sqrt()
    assert bool(((ours.mean(0) - theirs.mean(0)).abs() < 4 * error).all())
    assert torch.allclose(ours.std(0), theirs.std(0), rtol=0.06)
    assert bool((ours[:, 0] + ours[:, 2] <= 40).all())
    assert bool((ours[:, 1] + ours[:, 3] <= 64).all())


@pytest.mark.parametrize("canvas", [(10, 80), (80, 10)])
def test_where_no_box_fits_the_central_one_of_torchvision_is_taken(canvas: tuple[int, int]) -> None:
    settings = {"scale": (0.9, 1.0), "ratio": (0.8, 1.25)}
    boxes = random_resized_boxes(STREAMS, canvas, torch.ones(4000), **settings)
    central = RandomResizedCrop.get_params(torch.empty(3, *canvas), [0.9, 1.0], [0.8, 1.25])
    for name, value in zip(("top", "left", "height", "width"), central, strict=True):
        assert bool((getattr(boxes, name) == value).all())


def test_area_and_ratio_are_those_of_the_original_where_the_canvas_is_squashed() -> None:
    aspects = torch.full((4000,), 1.6)
    boxes = random_resized_boxes(STREAMS, (256, 256), aspects, scale=(0.2, 0.5), ratio=(0.9, 1.1))
    ratio = boxes.width * 1.6 / boxes.height
    area = boxes.height * boxes.width / 256**2
    assert 0.88 < ratio.min() < 0.91
    assert 1.09 < ratio.max() < 1.12
    assert 0.19 < area.min() < 0.21
    assert 0.49 < area.max() < 0.51


def test_without_a_crop_the_box_is_the_one_of_evaluation() -> None:
    aspects = torch.tensor([1.0, 2.0, 0.5])
    boxes = evaluation_boxes((100, 100), aspects, (32, 32), 0.8)
    assert boxes.height.tolist() == [80, 80, 40]
    assert boxes.width.tolist() == [80, 40, 80]
    assert boxes.top.tolist() == [10, 10, 30]
    assert boxes.left.tolist() == [10, 30, 10]
    assert evaluation_boxes((32, 64), torch.ones(1), (32, 64), 1.0).cover((32, 64))


@pytest.mark.parametrize("crop_fraction", [1.0, 0.75])
@pytest.mark.parametrize("squash", [False, True])
def test_without_a_crop_training_sees_what_evaluation_sees(squash: bool, crop_fraction: float) -> None:
    """A wide image, a quarter of it white at the left: the central box cuts it off, a squashed image keeps it."""
    prepared = Preprocessing(image_size=(32, 32), crop_fraction=crop_fraction, squash=squash)
    pixels = np.zeros((32, 64, 3), np.uint8)
    pixels[:, :16] = 255
    expected = normalize(resize_and_crop(Image.fromarray(pixels), prepared)[None], prepared)
    canvas = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    batch = replace(batch_of(canvas), aspects=torch.ones(1))
    found, _ = Augment(AugmentConfig(), prepared, 2)(batch, seed=0, epoch=0)
    assert (found > 0).sum() == pytest.approx(int((expected > 0).sum()), abs=3 * 32)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("filter", ["bilinear", "bicubic", "nearest"])
def test_without_a_crop_training_resizes_as_evaluation_does(filter: Interpolation, antialias: bool) -> None:
    """Not with the filter of a random crop, of which there is none."""
    prepared = Preprocessing(image_size=(12, 12), crop_fraction=1.0, interpolation=filter, antialias=antialias)
    images = random_batch(3, 31).images
    expected = [resize_and_crop(Image.fromarray(image.permute(1, 2, 0).numpy()), prepared) for image in images]
    found, _ = Augment(AugmentConfig(), replace(prepared, **PLAIN), NUM_CLASSES)(batch_of(images), seed=0, epoch=0)
    most = 20 if filter == "bicubic" and not antialias else 1.5  # torch's cubic is steeper than Pillow's, which is ours
    assert (found - torch.stack(expected)).abs().max() < most


def test_areas_are_uniform_in_scale() -> None:
    boxes = random_resized_boxes(STREAMS, (512, 512), torch.ones(4000), scale=(0.1, 0.5), ratio=(0.99, 1.01))
    area = (boxes.height * boxes.width).double() / 512**2
    assert math.isclose(area.mean(), 0.3, abs_tol=0.01)
    assert math.isclose(area.std(), 0.4 / math.sqrt(12), abs_tol=0.005)
