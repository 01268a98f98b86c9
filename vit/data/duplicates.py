"""Test images that are training images too, be it in another size, format or compression.

They are found by thumbnails: 16×16 grey pixels less their mean, at length 1. Of 1,500 photographs of Tiny-ImageNet,
99 % have a cosine above 0.992 with themselves as a JPEG of 48 pixels and quality 60; among 10,000 different ones none
is above 0.966. Simple drawings, one shape on an even ground, are as near to others, so no pixel of the thumbnail may
differ much either: in 99 % of such copies by at most 11 grey levels, in half of the unlike drawings by more than 57.
A crop or a turn is not found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vit.data.decoding import BrokenImage
from vit.data.splits import Split
from vit.progress import tracked

LEAST_COSINE = 0.985
_SIDE = 16
MOST_GREY_LEVELS = 32.0
"""By which a pixel of the thumbnail may differ."""
_LEAST_DEVIATION = 2.0
"""Standard deviation in grey levels; an even picture is like any other one."""
_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Duplicate:
    test: str
    train: str
    cosine: float


def near_duplicates(train: Split, test: Split) -> list[Duplicate]:
    """The nearest training image of every test image that has one, in the order of the test images.

    Images that cannot be decoded, and even ones, are left out.
    """
    known = _thumbnails(train, "duplicates: training images")
    asked = _thumbnails(test, "duplicates: test images")
    directions, others = _directions(asked), _directions(known)
    found: list[Duplicate] = []
    for start in range(0, len(asked.names), _ROWS_AT_ONCE):
        cosines = directions[start : start + _ROWS_AT_ONCE] @ others.T  # b n
        for row, values in enumerate(cosines, start):
            near = np.flatnonzero(values >= LEAST_COSINE)
            apart = np.abs(known.pixels[near] - asked.pixels[row]).max(axis=1, initial=0)
            near = near[apart <= MOST_GREY_LEVELS]
            if len(near):
                nearest = near[values[near].argmax()]
                found.append(Duplicate(asked.names[row], known.names[nearest], float(values[nearest])))
    return found


@dataclass(frozen=True)
class _Thumbnails:
    pixels: NDArray[np.float32]
    """Grey levels (n, 256)."""
    names: list[str]


def _directions(thumbnails: _Thumbnails) -> NDArray[np.float32]:
    """Pixels less their mean, at length 1 (n, 256)."""
    centred = thumbnails.pixels - thumbnails.pixels.mean(axis=1, keepdims=True)
    return centred / np.linalg.norm(centred, axis=1, keepdims=True)


def _thumbnails(split: Split, title: str) -> _Thumbnails:
    kept: list[NDArray[np.float32]] = []
    names: list[str] = []
    for index in tracked(split.indices.tolist(), title, len(split), unit="img", leave=False):
        try:
            image = split.source.read(index, smallest=(4 * _SIDE, 4 * _SIDE))
        except BrokenImage:
            continue
        small = image.convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
        pixels = np.asarray(small, dtype=np.float32).reshape(-1)
        if pixels.std() >= _LEAST_DEVIATION:
            kept.append(pixels)
            names.append(split.source.name(index))
    return _Thumbnails(np.array(kept, dtype=np.float32).reshape(len(kept), _SIDE**2), names)
