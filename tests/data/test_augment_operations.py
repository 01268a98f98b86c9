"""Every pixel operation against Pillow and torchvision on the same uint8 images, and geometry against both."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as V

from tests.data.augment_batches import random_batch
from vit.data.augment.colors import OPERATIONS, luminance
from vit.data.augment.geometry import GEOMETRY, affine_maps, warp_affine

PIL_OPERATIONS: dict[str, tuple[Callable[[Image.Image, float], Image.Image], list[float]]] = {
    "AutoContrast": (lambda image, _: ImageOps.autocontrast(image), [0]),
    "Equalize": (lambda image, _: ImageOps.equalize(image), [0]),
    "Invert": (lambda image, _: ImageOps.invert(image), [0]),
    "Posterize": (lambda image, bits: ImageOps.posterize(image, int(bits)), [1, 4, 7, 8]),
    "Solarize": (lambda image, threshold: ImageOps.solarize(image, int(threshold)), [0, 26, 128, 256]),
    "SolarizeAdd": (
        lambda image, add: image.point([min(255, i + int(add)) if i < 128 else i for i in range(256)] * 3),
        [0, 55, 110, 128],
    ),
    "Color": (lambda image, factor: ImageEnhance.Color(image).enhance(factor), [0, 0.1, 0.55, 1, 1.9]),
    "Contrast": (lambda image, factor: ImageEnhance.Contrast(image).enhance(factor), [0, 0.1, 0.55, 1, 1.9]),
    "Brightness": (lambda image, factor: ImageEnhance.Brightness(image).enhance(factor), [0, 0.1, 0.55, 1, 1.9]),
    "Sharpness": (lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor), [0, 0.1, 0.55, 1, 1.9]),
}
TORCHVISION_OPERATIONS: dict[str, tuple[Callable[[Tensor, float], Tensor], list[float]]] = {
    "AutoContrast": (lambda image, _: V.autocontrast(image), [0]),
    "Equalize": (lambda image, _: V.equalize(image), [0]),
    "Invert": (lambda image, _: V.invert(image), [0]),
    "Posterize": (lambda image, bits: V.posterize(image, int(bits)), [1, 4, 8]),
    "Solarize": (lambda image, threshold: V.solarize(image, threshold), [0, 28.3, 128, 255]),
    "Color": (lambda image, factor: V.adjust_saturation(image, factor), [0, 0.1, 0.55, 1, 1.9]),
    "Contrast": (lambda image, factor: V.adjust_contrast(image, factor), [0, 0.1, 0.55, 1, 1.9]),
    "Brightness": (lambda image, factor: V.adjust_brightness(image, factor), [0, 0.1, 0.55, 1, 1.9]),
    "Sharpness": (lambda image, factor: V.adjust_sharpness(image, factor), [0, 0.1, 0.55, 1, 1.9]),
}
EXACT = {"Equalize", "Invert", "Posterize", "Solarize", "SolarizeAdd"}
"""The others may differ by a level: references differ among themselves in the rounding of grey and of factors."""


def natural_images() -> Tensor:
    """Smooth, noisy, dark, constant and two-valued images: uint8 (6, 3, 23, 29)."""
    y, x = torch.meshgrid(torch.linspace(0, 1, 23), torch.linspace(0, 1, 29), indexing="ij")
    smooth = torch.stack([200 * x, 90 + 60 * y, 255 * x * y])
    noise = random_batch(1, (23, 29)).images[0].float()
    dark = noise / 4 + 30
    constant = torch.full_like(noise, 77)
    two_valued = (noise > 200) * 100.0 + 20
    return torch.stack([smooth, noise, dark, constant, two_valued, (smooth + noise) / 2]).to(torch.uint8)


def to_pil(image: Tensor) -> Image.Image:
    return Image.fromarray(image.movedim(0, -1).contiguous().numpy())


def from_pil(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).movedim(-1, 0)


def assert_close(ours: Tensor, theirs: Tensor, levels: int) -> None:
    assert ours.dtype == torch.uint8
    assert (ours.int() - theirs.int()).abs().max() <= levels


@pytest.mark.parametrize("name", PIL_OPERATIONS)
def test_operation_equals_pillow(name: str) -> None:
    operation, arguments = PIL_OPERATIONS[name]
    images = natural_images()
    for argument in arguments:
        ours = OPERATIONS[name](images, torch.full((len(images),), argument, dtype=torch.float64))
        theirs = torch.stack([from_pil(operation(to_pil(image), argument)) for image in images])
        assert_close(ours, theirs, 0 if name in EXACT else 1)


@pytest.mark.parametrize("name", TORCHVISION_OPERATIONS)
def test_operation_equals_torchvision(name: str) -> None:
    operation, arguments = TORCHVISION_OPERATIONS[name]
    images = natural_images()
    for argument in arguments:
        ours = OPERATIONS[name](images, torch.full((len(images),), argument, dtype=torch.float64))
        theirs = torch.stack([operation(image, argument) for image in images])
        assert_close(ours, theirs, 0 if name in EXACT else 1)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_sample_has_its_own_argument(name: str) -> None:
    images = natural_images()
    arguments = torch.tensor([0.3, 1.7, 0.9, 1.2, 0.4, 1.0], dtype=torch.float64)
    if name in ("Posterize", "Solarize", "SolarizeAdd"):
        arguments = torch.tensor([1, 2, 3, 4, 5, 6], dtype=torch.float64)
    together = OPERATIONS[name](images, arguments)
    alone = [OPERATIONS[name](images[i : i + 1], arguments[i : i + 1]) for i in range(6)]
    assert torch.equal(together, torch.cat(alone))


def test_luminance_is_pillows() -> None:
    images = torch.cat([natural_images(), random_batch(20, (23, 29)).images])
    theirs = torch.stack([torch.from_numpy(np.array(to_pil(image).convert("L"))) for image in images])
    assert torch.equal(luminance(images.float())[:, 0], theirs.float())


def test_posterize_to_no_bits_is_black() -> None:
    """Pillow refuses 0 bits; TensorFlow's operation, which the strength follows, gives black."""
    assert OPERATIONS["Posterize"](natural_images()[:1], torch.tensor([0.0])).max() == 0


def test_sharpness_leaves_a_two_pixel_image_alone() -> None:
    images = random_batch(2, (2, 9)).images
    assert torch.equal(OPERATIONS["Sharpness"](images, torch.tensor([0.1, 1.9])), images)


def moved(images: Tensor, name: str, amount: float) -> Tensor:
    count = len(images)
    kind = torch.full((count,), GEOMETRY.index(name))
    return warp_affine(images, affine_maps(kind, torch.full((count,), amount), (images.shape[-2], images.shape[-1])))


PIL_MAPS: dict[str, Callable[[float, int, int], tuple[float, ...]]] = {
    "ShearX": lambda amount, _h, _w: (1, amount, 0, 0, 1, 0),
    "ShearY": lambda amount, _h, _w: (1, 0, 0, amount, 1, 0),
    "TranslateX": lambda amount, _h, width: (1, 0, amount * width, 0, 1, 0),
    "TranslateY": lambda amount, height, _w: (1, 0, 0, 0, 1, amount * height),
}


@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry_equals_pillow_inside_the_image(name: str) -> None:
    """Bilinear; at the edge Pillow repeats the border where this fades into the fill, so pixels there are left out."""
    images = natural_images()
    for amount in (25.0, -9.0) if name == "Rotate" else (0.27, -0.1):
        ours = moved(images, name, amount)
        inside = moved(torch.full_like(images, 255), name, amount) == 255
        for i, image in enumerate(images):
            picture = to_pil(image)
            if name == "Rotate":
                theirs = picture.rotate(amount, resample=Image.Resampling.BILINEAR)
            else:
                matrix = PIL_MAPS[name](amount, *image.shape[-2:])
                theirs = picture.transform(
                    picture.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR
                )
            assert inside[i].float().mean() > 0.5
            assert_close(ours[i] * inside[i], from_pil(theirs) * inside[i], 1)


@pytest.mark.parametrize("degrees", [0.0, 17.0, -30.0])
def test_rotation_equals_torchvision_with_its_fill(degrees: float) -> None:
    """Everywhere but on the edge itself, where torchvision darkens what it blends with the fill."""
    images = natural_images()
    theirs = V.rotate(images, degrees, interpolation=InterpolationMode.BILINEAR, fill=[128.0] * 3)
    coverage = moved(torch.full_like(images, 255), "Rotate", degrees)
    edge = (coverage > 128) & (coverage < 255)
    assert edge.float().mean() < 0.2
    assert_close(moved(images, "Rotate", degrees) * ~edge, theirs * ~edge, 1)


@pytest.mark.parametrize("name", ["TranslateX", "TranslateY"])
def test_a_whole_shift_moves_pixels_and_fills_with_grey(name: str) -> None:
    images = random_batch(2, 10).images
    shifted = moved(images, name, 0.3)
    axis = 3 if name == "TranslateX" else 2
    assert torch.equal(shifted.narrow(axis, 0, 7), images.narrow(axis, 3, 7))
    assert bool((shifted.narrow(axis, 7, 3) == 128).all())


def test_kinds_of_geometry_may_be_mixed_in_one_batch() -> None:
    images = natural_images()[:5]
    amounts = torch.tensor([20.0, 0.2, -0.2, 0.3, -0.4])
    together = warp_affine(images, affine_maps(torch.arange(5), amounts, (23, 29)))
    for i, name in enumerate(GEOMETRY):
        assert torch.equal(together[i : i + 1], moved(images[i : i + 1], name, float(amounts[i])))
