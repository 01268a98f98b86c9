"""The one place where image files are opened: a file or PIL image to 8-bit RGB, turned upright.

An image that cannot be fully decoded raises `BrokenImage`, and so does a file of another format than `FORMATS`,
whatever its name says: Pillow would start Ghostscript for one that is EPS inside. Of an animation, the first frame.

An image is decoded whole, at 4 bytes a pixel, twice as much while one is turned; above Pillow's limit of 179 million
pixels it counts as broken.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import sys
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.TiffImagePlugin import BITSPERSAMPLE, PHOTOMETRIC_INTERPRETATION

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF")
"""By Pillow's names; PPM is all of PNM, and MPO, with several photographs, is read as JPEG."""
SUFFIXES = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".avif"),
}
"""Endings of the files in a folder that count as images."""
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientations other than 1, and the operation that undoes each."""
DECODE_ERRORS = (
    OSError,  # unidentified, truncated, unreadable
    SyntaxError,  # how PIL reports a damaged PNG
    ValueError,
    EOFError,
    IndexError,
    struct.error,
    zlib.error,
    RuntimeError,  # how the AVIF decoder reports damage
    Image.DecompressionBombError,
)


_STORAGE_ERRORS = (
    *(errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    *(errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT),  # network file systems
)
"""The disk, the network or the system failed; the file itself may be intact."""

logging.getLogger("PIL").setLevel(logging.CRITICAL)  # it logs, and then raises, what is wrong with a file


class MissingImages(ValueError):
    """The requested part of a data set has no usable images; the message says which, and how to get them."""


class BrokenImage(Exception):
    """An image that cannot be decoded, with its name and the decoder's reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason

    def __reduce__(self) -> tuple[type[BrokenImage], tuple[str, str]]:
        return BrokenImage, (self.name, self.reason)  # pickled by workers; the default would pass the message alone


class FailedRead(OSError):
    """An image that was not read because the disk or the system failed: it is not to be skipped as broken."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} could not be read ({reason}); repair the disk or the connection, and continue")
        self.name = name
        self.reason = reason

    def __reduce__(self) -> tuple[type[FailedRead], tuple[str, str]]:
        return FailedRead, (self.name, self.reason)


def raise_unreadable(name: str, error: Exception) -> NoReturn:
    """Raise `FailedRead` or BrokenImage for one of `DECODE_ERRORS`; that of torch about a dead worker stays."""
    if isinstance(error, OSError) and error.errno in _STORAGE_ERRORS:
        raise FailedRead(name, str(error)) from error
    if "DataLoader worker" in str(error):  # torch's handler raises wherever this process is
        raise error
    raise BrokenImage(name, str(error)) from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Turn upright by EXIF, and convert grey, palette, CMYK, 16-bit and transparent images to 8-bit RGB.

    Of 12 or 16 bits, the upper 8; transparency is dropped, not blended. ValueError for a float or 32-bit image, whose
    range of values is unknown.
    """
    image.load()
    of_pnm = image.format == "PPM"
    depth, is_negative = _tiff_greys(image)
    turn = _UPRIGHT.get(_orientation(image))  # after loading, which itself turns a TIFF
    image = image if turn is None else image.transpose(turn)
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16"):  # PIL would clip 16 bits to 255: all white
        grey = (np.asarray(image) >> (depth - 8)).astype(np.uint8)
        return Image.fromarray(255 - grey if is_negative else grey).convert("RGB")
    if image.mode == "I" and of_pnm:  # PIL scales any maximum to 16 bits
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("F", "I"):
        raise ValueError(f"pixels of mode {image.mode!r} have no defined range")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _tiff_greys(image: Image.Image) -> tuple[int, bool]:
    """The bits of a grey pixel of more than 8, and whether 0 is white, which Pillow heeds up to 8 bits only."""
    tags = getattr(image, "tag_v2", None)
    if not image.mode.startswith("I;16") or tags is None:
        return 16, False
    return int(tags[BITSPERSAMPLE][0]), tags.get(PHOTOMETRIC_INTERPRETATION, 0) == 0


def thumbnail(image: Image.Image, side: int = 128) -> NDArray[np.uint8]:
    """Pixels (h, w, 3) of an RGB image for a figure, at most `side` wide and high; a smaller image stays as it is."""
    image.thumbnail((side, side), Image.Resampling.BILINEAR)
    return np.asarray(image)


def _orientation(image: Image.Image) -> int:
    """EXIF's; 1, upright, where there is none and where the metadata is damaged, which leaves the pixels intact."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except DECODE_ERRORS:
        return 1
    return orientation if isinstance(orientation, int) else 1


@contextmanager
def only_known_formats() -> Iterator[None]:
    """Inside, Pillow opens files of `FORMATS` alone, also for a library that does not say which it may."""
    Image.init()
    everything = Image.ID
    Image.ID = [name for name in everything if name in FORMATS]
    try:
        yield
    finally:
        Image.ID = everything


@contextmanager
def _silent_libtiff() -> Iterator[None]:
    """Drop what libtiff prints about a damaged file, past Python; the error that Pillow raises says that it is so."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@cache
def _decodable() -> tuple[str, ...]:
    """Those of `FORMATS` that this Pillow knows."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def read_rgb(path: Path, name: str, smallest: tuple[int, int] | None = None) -> Image.Image:
    """Decode a file to RGB; BrokenImage with the given name if that fails, `FailedRead` for a failure of the disk.

    `smallest` (width, height) of the upright image: a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, which is much
    faster, but not below this.
    """
    try:
        if path.exists() and not path.is_file():  # reading a pipe or a device would wait for ever
            raise BrokenImage(name, "it is not a file")
        with warnings.catch_warnings(action="ignore"), Image.open(path, formats=_decodable()) as image:
            if smallest is not None and image.format in ("JPEG", "MPO"):
                image.draft(None, smallest if _orientation(image) < 5 else smallest[::-1])
            with _silent_libtiff() if image.format == "TIFF" else nullcontext():
                return to_rgb(image)
    except UnidentifiedImageError as error:
        raise BrokenImage(name, f"it is not an image in one of the formats {', '.join(_decodable())}") from error
    except DECODE_ERRORS as error:
        raise_unreadable(name, error)
