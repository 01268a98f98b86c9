from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.image_folders import picture, truncate
from vit.data.decoding import BrokenImage, read_rgb, to_rgb


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK", "YCbCr", "HSV"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    image = to_rgb(picture((9, 7), 0).convert(mode))
    assert (image.mode, image.size) == ("RGB", (9, 7))


def test_grey_becomes_three_equal_channels() -> None:
    grey = np.arange(63, dtype=np.uint8).reshape(7, 9) * 4
    pixels = np.asarray(to_rgb(Image.fromarray(grey)))
    np.testing.assert_array_equal(pixels, np.repeat(grey[:, :, None], 3, axis=2))


def test_16_bits_are_scaled_not_clipped() -> None:
    image = Image.fromarray(np.array([[0, 256, 32768, 65535]], dtype=np.uint16))
    np.testing.assert_array_equal(np.asarray(to_rgb(image))[0, :, 0], [0, 1, 128, 255])


def test_cmyk_and_palette_keep_their_colours(tmp_path: Path) -> None:
    red = Image.new("RGB", (16, 16), (200, 10, 20))
    for image, name in [(red.convert("CMYK"), "a.jpg"), (red.quantize(8), "a.png"), (red.quantize(8), "a.gif")]:
        image.save(tmp_path / name)
        pixels = np.asarray(read_rgb(tmp_path / name, name)).astype(int)
        assert abs(pixels - [200, 10, 20]).max() <= 3


def test_palette_with_transparency(tmp_path: Path) -> None:
    image = Image.new("RGB", (8, 8), (200, 10, 20)).quantize(8)
    image.save(tmp_path / "a.png", transparency=bytes(range(200)))
    assert read_rgb(tmp_path / "a.png", "a").getpixel((0, 0)) == (200, 10, 20)


@pytest.mark.parametrize("suffix", ["jpg", "png", "bmp", "webp", "gif", "tiff"])
def test_a_truncated_file_is_broken(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    picture((40, 40), 1).save(path)
    read_rgb(path, "whole")
    truncate(path)
    with pytest.raises(BrokenImage, match="the name") as caught:
        read_rgb(path, "the name")
    assert caught.value.reason


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_a_file_without_an_image_is_broken(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(BrokenImage):
        read_rgb(tmp_path / "a.png", "a")


def test_a_missing_file_and_an_image_without_a_range_are_broken(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((3, 3), np.float32)).save(tmp_path / "a.tiff")
    for name in ("a.tiff", "nowhere.jpg"):
        with pytest.raises(BrokenImage):
            read_rgb(tmp_path / name, name)


def test_broken_image_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(BrokenImage("a", "why")))
    assert (error.name, error.reason) == ("a", "why")


def test_a_large_jpeg_may_be_decoded_smaller_but_not_below_the_limit(tmp_path: Path) -> None:
    picture((400, 300), 0).save(tmp_path / "a.jpg")
    assert read_rgb(tmp_path / "a.jpg", "a").size == (400, 300)
    assert read_rgb(tmp_path / "a.jpg", "a", (100, 75)).size == (100, 75)
    assert read_rgb(tmp_path / "a.jpg", "a", (101, 75)).size == (200, 150)
    assert read_rgb(tmp_path / "a.jpg", "a", (300, 300)).size == (400, 300)
