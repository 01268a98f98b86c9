"""Decoding of an image file or PIL image to RGB; an image that cannot be fully decoded raises `BrokenImage`.

Pixels are used as stored: an EXIF orientation is not applied, as in torchvision and timm.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

DECODE_ERRORS = (
    OSError,  # unidentified, truncated, unreadable
    SyntaxError,  # how PIL reports a damaged PNG
    ValueError,
    EOFError,
    IndexError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


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


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert grey, palette, CMYK, 16-bit and transparent images to 8-bit RGB; transparency is dropped, not blended.

    ValueError for a float or 32-bit image, whose range of values is unknown.
    """
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode in ("F", "I"):
        raise ValueError(f"pixels of mode {image.mode!r} have no defined range")
    if image.mode.startswith("I;16"):  # PIL would clip 16 bits to 255: all white
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def read_rgb(path: Path, name: str, smallest: tuple[int, int] | None = None) -> Image.Image:
    """Decode a file to RGB; BrokenImage with the given name if that fails.

    `smallest` (width, height): a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, which is much faster, but not
    below this.
    """
    try:
        with Image.open(path) as image:
            if smallest is not None:
                image.draft(None, smallest)
            return to_rgb(image)
    except DECODE_ERRORS as error:
        raise BrokenImage(name, str(error)) from error
