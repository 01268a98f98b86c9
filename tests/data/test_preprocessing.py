from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from timm.data import create_transform
from torchvision.transforms import v2

from tests.data.image_folders import picture
from vit.config import Preprocessing
from vit.config.data import Interpolation
from vit.data.preprocessing import normalize, resize_and_crop, to_tensor

MODES: dict[Interpolation, v2.InterpolationMode] = {
    name: v2.InterpolationMode(name) for name in ("bilinear", "bicubic", "nearest")
}


def test_an_image_of_the_right_size_is_untouched() -> None:
    image = picture((32, 24), 0)
    pixels = resize_and_crop(image, Preprocessing(image_size=(24, 32)))
    np.testing.assert_array_equal(pixels.numpy(), np.asarray(image).transpose(2, 0, 1))
    assert pixels.dtype == torch.uint8
    assert pixels.is_contiguous()


@pytest.mark.parametrize("size", [(9, 4000), (4000, 9), (8, 4001), (4001, 8)])
@pytest.mark.parametrize("image_size", [(16, 16), (16, 24)])
@pytest.mark.parametrize("antialias", [True, False])
def test_of_a_very_long_image_the_middle_alone_is_resized(
    size: tuple[int, int], image_size: tuple[int, int], antialias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    preprocessing = Preprocessing(image_size=image_size, crop_fraction=0.9, antialias=antialias)
    short = resize_and_crop(picture(size, 0), preprocessing)
    monkeypatch.setattr("vit.data.preprocessing._LONGEST", 10**9)
    whole = resize_and_crop(picture(size, 0), preprocessing)
    assert (short.int() - whole.int()).abs().max() <= 4, "the centre may move by half a pixel, where a size is rounded"


def test_a_line_of_pixels_takes_little_memory() -> None:
    assert resize_and_crop(picture((100_000, 1), 0), Preprocessing(image_size=(224, 224))).shape == (3, 224, 224)
    assert resize_and_crop(picture((1, 100_000), 0), Preprocessing(image_size=(224, 224))).shape == (3, 224, 224)


def test_the_centre_is_cropped() -> None:
    columns = np.zeros((4, 8, 3), np.uint8) + np.arange(8, dtype=np.uint8)[None, :, None]
    pixels = resize_and_crop(Image.fromarray(columns), Preprocessing(image_size=(4, 4)))
    assert pixels[0, 0].tolist() == [2, 3, 4, 5]


@settings(max_examples=40, deadline=None)
@given(
    width=st.integers(5, 70),
    height=st.integers(5, 70),
    size=st.sampled_from([8, 23, 32]),
    crop_fraction=st.sampled_from([1.0, 0.9, 0.875, 0.95]),
    interpolation=st.sampled_from(sorted(MODES)),
    antialias=st.booleans(),
)
def test_equal_to_torchvision(
    width: int, height: int, size: int, crop_fraction: float, interpolation: Interpolation, antialias: bool
) -> None:
    image = picture((width, height), width)
    if not antialias:
        image = v2.functional.pil_to_tensor(image)
    mode = MODES[interpolation]
    resize = v2.Resize(int(size / crop_fraction), interpolation=mode, antialias=antialias)
    expected = v2.Compose([resize, v2.CenterCrop(size), v2.ToImage()])(image)
    ours = resize_and_crop(
        picture((width, height), width),
        Preprocessing(
            image_size=(size, size), crop_fraction=crop_fraction, interpolation=interpolation, antialias=antialias
        ),
    )
    if antialias or interpolation != "nearest":  # torchvision's nearest of a tensor and of a PIL image differ
        torch.testing.assert_close(ours, expected.as_subclass(torch.Tensor), rtol=0, atol=0)


@pytest.mark.parametrize(("crop_fraction", "resized"), [(1.0, (24, 40)), (0.8, (30, 50))])
def test_squashing_changes_the_aspect(crop_fraction: float, resized: tuple[int, int]) -> None:
    image = picture((61, 47), 3)
    ours = resize_and_crop(image, Preprocessing(image_size=(24, 40), crop_fraction=crop_fraction, squash=True))
    squashed = v2.Resize(resized, interpolation=MODES["bicubic"])(image)
    expected = v2.Compose([v2.CenterCrop((24, 40)), v2.PILToTensor()])(squashed)
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)


@pytest.mark.parametrize("image_size", [(32, 32), (32, 56), (40, 24)])
@pytest.mark.parametrize("crop_fraction", [1.0, 0.9])
@pytest.mark.parametrize("size", [(61, 47), (100, 41), (33, 90)])
def test_equal_to_timm(image_size: tuple[int, int], crop_fraction: float, size: tuple[int, int]) -> None:
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    transform = create_transform((3, *image_size), interpolation="bicubic", mean=mean, std=std, crop_pct=crop_fraction)
    preprocessing = Preprocessing(image_size=image_size, crop_fraction=crop_fraction, mean=mean, std=std)
    image = picture(size, 3)
    ours = normalize(resize_and_crop(image, preprocessing)[None], preprocessing)[0]
    torch.testing.assert_close(ours, transform(image), rtol=0, atol=1e-6)


def test_antialias_and_every_interpolation_move_the_pixels() -> None:
    image = picture((90, 90), 5).effect_spread(9)
    results = {
        resize_and_crop(image, Preprocessing(image_size=(16, 16), interpolation=interpolation, antialias=antialias))
        .numpy()
        .tobytes()
        for interpolation, antialias in [(m, a) for m in MODES for a in (True, False)]
    }
    assert len(results) == 5  # antialiasing means nothing to `nearest`


def test_normalize_by_hand() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8)[None, :, None, None].expand(2, 3, 4, 5)
    preprocessing = Preprocessing(image_size=(4, 5), mean=(0.5, 0.0, 0.25), std=(0.5, 0.1, 0.25))
    out = normalize(images, preprocessing)
    assert out.shape == (2, 3, 4, 5)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out[1, :, 2, 3], torch.tensor([-1.0, 2.0, 3.0]))


def test_normalize_leaves_its_input() -> None:
    images = to_tensor(picture((4, 4), 0))[None]
    before = images.clone()
    normalize(images, Preprocessing(image_size=(4, 4)))
    assert torch.equal(images, before)
