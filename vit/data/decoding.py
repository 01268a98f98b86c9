"""One image file or PIL image to RGB pixels; what cannot be decoded whole is a `BrokenImage`, never a guess.

Knows PIL. Knows nothing of data sets, canvases or models. Pixels are taken as stored: an EXIF orientation is
not applied, as in torchvision and timm.
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


class BrokenImage(Exception):
    """An image that cannot be decoded: which one, and what the decoder said."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason

    def __reduce__(self) -> tuple[type[BrokenImage], tuple[str, str]]:
        return BrokenImage, (self.name, self.reason)  # it travels from workers


def to_rgb(image: Image.Image) -> Image.Image:
    """Grey, palette, CMYK, 16-bit and transparent images as 8-bit RGB; transparency is dropped, not blended.

    A float or 32-bit image raises ValueError: its range of brightness is unknown.
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
    """Decode a file.

    `smallest` (width, height): a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, but not below this; much
    faster. Raises BrokenImage under the given name.
    """
    try:
        with Image.open(path) as image:
            if smallest is not None:
                image.draft(None, smallest)
            return to_rgb(image)
    except DECODE_ERRORS as error:
        raise BrokenImage(name, str(error)) from error
