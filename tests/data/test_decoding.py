from __future__ import annotations

import errno
import os
import pickle
import struct
import sys
import warnings
import zlib
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, ExifTags, Image, features
from torchvision import datasets

from tests.data.image_folders import picture, truncate
from vit.config import Preprocessing
from vit.data.decoding import _UPRIGHT, FORMATS, SUFFIXES, BrokenImage, FailedRead, read_rgb, to_rgb
from vit.data.file_source import FileSource
from vit.data.sources import TorchvisionSource
from vit.data.streaming import CanvasDecoder, EvaluationDecoder

needs_avif = pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF decoder")


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


def test_a_large_photograph_is_decoded_in_silence_and_a_larger_one_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (30, 30), "red").save(tmp_path / "photo.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)  # a warning at once, an error above twice as many
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert read_rgb(tmp_path / "photo.png", "photo.png").size == (30, 30)
    assert caught == []
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 449)
    with pytest.raises(BrokenImage, match=r"photo.png: Image size \(900 pixels\) exceeds limit of 898 pixels"):
        read_rgb(tmp_path / "photo.png", "photo.png")


def test_a_missing_file_and_an_image_without_a_range_are_broken(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((3, 3), np.float32)).save(tmp_path / "a.tiff")
    for name in ("a.tiff", "nowhere.jpg"):
        with pytest.raises(BrokenImage):
            read_rgb(tmp_path / name, name)


@pytest.mark.parametrize("kind", [BrokenImage, FailedRead])
def test_broken_image_can_be_pickled(kind: type[BrokenImage | FailedRead]) -> None:
    error = pickle.loads(pickle.dumps(kind("a", "why")))
    assert type(error) is kind
    assert (error.name, error.reason) == ("a", "why")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OSError(errno.EIO, "Input/output error"), FailedRead),
        (OSError(errno.EMFILE, "Too many open files"), FailedRead),
        (OSError(errno.EACCES, "Permission denied"), BrokenImage),
        (OSError("image file is truncated"), BrokenImage),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."), RuntimeError),
        (RuntimeError("Failed to decode frame"), BrokenImage),
    ],
)
def test_a_failure_of_the_machine_does_not_make_an_image_broken(
    raised: Exception, expected: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "open", Mock(side_effect=raised))
    with pytest.raises(Exception) as found:  # noqa: PT011
        read_rgb(tmp_path / "a.png", "a.png")
    assert type(found.value) is expected


def test_a_large_jpeg_may_be_decoded_smaller_but_not_below_the_limit(tmp_path: Path) -> None:
    picture((400, 300), 0).save(tmp_path / "a.jpg")
    assert read_rgb(tmp_path / "a.jpg", "a").size == (400, 300)
    assert read_rgb(tmp_path / "a.jpg", "a", (100, 75)).size == (100, 75)
    assert read_rgb(tmp_path / "a.jpg", "a", (101, 75)).size == (200, 150)
    assert read_rgb(tmp_path / "a.jpg", "a", (300, 300)).size == (400, 300)


def oriented(image: Image.Image, orientation: int, path: Path) -> Path:
    """Write the image as a camera held otherwise does: its pixels turned, and the orientation in EXIF."""
    undo = _UPRIGHT | {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    stored = image if orientation == 1 else image.transpose(undo[orientation])
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    stored.save(path, exif=exif, lossless=True)
    return path


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tiff", pytest.param("avif", marks=needs_avif)])
def test_photographs_are_turned_upright(tmp_path: Path, suffix: str, orientation: int) -> None:
    image = picture((64, 40), 0)
    found = read_rgb(oriented(image, orientation, tmp_path / f"a.{suffix}"), "a")
    assert found.size == (64, 40)
    difference = np.abs(np.asarray(found).astype(int) - np.asarray(image))
    assert difference.mean() < (6 if suffix in ("jpg", "avif") else 0.01)


def test_the_least_size_is_that_of_the_upright_image(tmp_path: Path) -> None:
    path = oriented(picture((400, 300), 0), 6, tmp_path / "a.jpg")
    assert read_rgb(path, "a", (100, 75)).size == (100, 75)
    assert read_rgb(path, "a", (75, 100)).size == (200, 150)


def test_training_and_evaluation_see_the_upright_image(tmp_path: Path) -> None:
    image = picture((48, 32), 0)
    image.save(tmp_path / "upright.png")
    oriented(image, 8, tmp_path / "turned.png")
    source = FileSource(tmp_path, ["upright.png", "turned.png"], torch.tensor([0, 1]), ["a", "b"])
    for decoder in (
        CanvasDecoder(source, (24, 24), "bilinear"),
        EvaluationDecoder(source, Preprocessing(image_size=(24, 24))),
    ):
        upright, turned = decoder[[0, 1]].images
        assert torch.equal(upright, turned)
    assert decoder.decode(0)[1] == decoder.decode(1)[1]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_a_damaged_or_senseless_orientation_leaves_the_pixels(tmp_path: Path) -> None:
    for number, exif in enumerate((b"Exif\0\0MM", b"Exif\0\0II*\0\xff\xff\xff\xff", b"nothing")):
        picture((9, 7), 0).save(tmp_path / f"{number}.jpg", exif=exif)
        assert read_rgb(tmp_path / f"{number}.jpg", "a").size == (9, 7)
    exif_of_nine = Image.Exif()
    exif_of_nine[ExifTags.Base.Orientation] = 9
    picture((9, 7), 0).save(tmp_path / "a.jpg", exif=exif_of_nine)
    assert read_rgb(tmp_path / "a.jpg", "a").size == (9, 7)


def test_a_file_that_is_something_else_inside_starts_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ghostscript = Mock()
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    for name in ("EPS", "ICO", "TGA", "PCX", "SGI"):
        picture((40, 40), 0).save(tmp_path / "x.jpg", name)
        with pytest.raises(BrokenImage, match=r"^x: it is not an image in one of the formats JPEG, PNG"):
            read_rgb(tmp_path / "x.jpg", "x")
    ghostscript.assert_not_called()


@pytest.mark.parametrize("suffix", sorted(SUFFIXES - {".avif"}))
def test_every_listed_file_can_be_decoded_whatever_it_is_called(tmp_path: Path, suffix: str) -> None:
    name = {**dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif"), "JPEG"), ".tif": "TIFF"}.get(suffix, suffix[1:].upper())
    name = "PPM" if name in ("PGM", "PBM", "PNM") else name
    assert name in FORMATS
    picture((9, 7), 0).convert("1" if suffix == ".pbm" else "RGB").save(tmp_path / f"a{suffix}", name)
    (tmp_path / f"a{suffix}").rename(tmp_path / "a.png")
    assert read_rgb(tmp_path / "a.png", "a").size == (9, 7)


@needs_avif
def test_a_damaged_avif_is_broken(tmp_path: Path) -> None:
    picture((40, 40), 1).save(tmp_path / "a.avif")
    content = bytearray((tmp_path / "a.avif").read_bytes())
    content[content.index(b"mdat") + 4] ^= 255  # the first byte of the pixels' data
    (tmp_path / "a.avif").write_bytes(content)
    with pytest.raises(BrokenImage):
        read_rgb(tmp_path / "a.avif", "a")


@pytest.mark.parametrize("suffix", ["gif", "webp", "png", "tiff"])
def test_an_animation_is_its_first_frame(tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((200, 10, 20), (10, 200, 20))]
    frames[0].save(tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:], lossless=True)
    assert read_rgb(tmp_path / f"a.{suffix}", "a").getpixel((4, 4)) == (200, 10, 20)


@pytest.mark.parametrize(("maximum", "levels"), [(65535, [0, 256, 65535]), (1023, [0, 4, 1023])])
def test_a_pnm_of_more_than_8_bits_is_scaled_by_its_maximum(tmp_path: Path, maximum: int, levels: list[int]) -> None:
    (tmp_path / "a.pgm").write_bytes(b"P5 3 1 %d\n" % maximum + np.array(levels, dtype=">u2").tobytes())
    assert np.asarray(read_rgb(tmp_path / "a.pgm", "a"))[0, :, 1].tolist() == [0, 1, 255]


def grey_tiff(path: Path, bits: int, photometric: int, pixels: bytes, width: int) -> Path:
    """One row of grey pixels, uncompressed, little-endian."""
    values = {256: width, 257: 1, 258: bits, 259: 1, 262: photometric, 273: 8, 277: 1, 278: 1, 279: len(pixels)}
    entries = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in values.items())
    pixels += b"\0" * (len(pixels) % 2)
    table = struct.pack("<H", len(values)) + entries + struct.pack("<I", 0)
    path.write_bytes(b"II*\0" + struct.pack("<I", 8 + len(pixels)) + pixels + table)
    return path


def test_greys_of_12_bits_and_negatives(tmp_path: Path) -> None:
    packed = bytes([0x00, 0x08, 0x00, 0xFF, 0xF4, 0x00])  # 0, 2048, 4095, 1024
    twelve = grey_tiff(tmp_path / "12.tif", 12, 1, packed, 4)
    assert np.asarray(read_rgb(twelve, "a"))[0, :, 1].tolist() == [0, 128, 255, 64]
    sixteen = np.array([0, 32768, 65535], dtype="<u2").tobytes()
    for photometric, levels in ((0, [255, 127, 0]), (1, [0, 128, 255])):
        path = grey_tiff(tmp_path / "16.tif", 16, photometric, sixteen, 3)
        assert np.asarray(read_rgb(path, "a"))[0, :, 1].tolist() == levels


def test_16_bits_of_a_file_are_scaled(tmp_path: Path) -> None:
    levels = np.array([[0, 256, 32768, 65535]], dtype=np.uint16)
    for suffix in ("png", "tiff"):
        Image.fromarray(levels).save(tmp_path / f"a.{suffix}")
        np.testing.assert_array_equal(np.asarray(read_rgb(tmp_path / f"a.{suffix}", "a"))[0, :, 1], [0, 1, 128, 255])

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = np.stack([levels[0], levels[0][::-1], levels[0]], axis=1).astype(">u2").tobytes()
    header = struct.pack(">IIBBBBB", 4, 1, 16, 2, 0, 0, 0)  # 16 bits of each of three colours
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" + row)) + chunk(b"IEND", b"")
    (tmp_path / "rgb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    found = np.asarray(read_rgb(tmp_path / "rgb.png", "a"))[0]
    np.testing.assert_array_equal(found[:, 0], [0, 1, 128, 255])
    np.testing.assert_array_equal(found[:, 1], [255, 128, 1, 0])


def test_image_files_are_opened_in_one_place() -> None:
    """Training, evaluation, prediction and analysis decode alike, and none accepts more formats."""
    package = Path(__file__).parents[2] / "vit"
    opening = {str(file.relative_to(package)) for file in package.rglob("*.py") if "Image.open(" in file.read_text()}
    assert opening == {"data/decoding.py", "evaluation/corruptions/digital.py"}, "the second reads what it has written"


def test_what_is_no_file_is_broken_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(BrokenImage, match=r"^a: it is not a file$"):
        read_rgb(tmp_path / "pipe.jpg", "a")
    (tmp_path / "zeros.jpg").symlink_to("/dev/zero")
    with pytest.raises(BrokenImage, match=r"^a: it is not a file$"):
        read_rgb(tmp_path / "zeros.jpg", "a")


def test_a_damaged_tiff_prints_nothing_past_python(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    picture((40, 40), 0).save(tmp_path / "a.tiff", compression="tiff_lzw")
    content = (tmp_path / "a.tiff").read_bytes()
    (tmp_path / "a.tiff").write_bytes(content[:8] + b"\xff" * 40 + content[48:])
    with pytest.raises(BrokenImage):
        read_rgb(tmp_path / "a.tiff", "a")
    print("still there", file=sys.stderr)
    assert capfd.readouterr().err == "still there\n"


def test_torchvisions_sets_decode_the_same_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ghostscript = Mock()
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        picture((40, 40), 0).save(tmp_path / name / "x.jpg", "EPS" if name == "cat" else "JPEG")
    source = TorchvisionSource(datasets.ImageFolder(tmp_path), torch.tensor([0, 1]), ["cat", "dog"], "set")
    with pytest.raises(BrokenImage, match=r"^set/0: cannot identify image file"):
        source.read(0)
    assert source.read(1).size == (40, 40)
    ghostscript.assert_not_called()
    assert "EPS" in Image.ID, "elsewhere in the process Pillow is as it was"
