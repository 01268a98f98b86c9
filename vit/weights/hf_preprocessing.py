"""Hugging Face's `preprocessor_config.json` in our words: how its processors resize, crop and normalise.

Processors of several generations wrote it (`size` as a number, as height and width, as the shortest edge). What it says
and `Preprocessing` cannot is refused by a line that names the key. One pixel may differ: where an odd number of rows or
columns is cut off, transformers rounds the crop's corner down, and torchvision, timm and this package to the even one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vit.config import Interpolation, Preprocessing, check

PREPROCESSING = "preprocessor_config.json"
FILTERS: dict[int, Interpolation] = {0: "nearest", 2: "bilinear", 3: "bicubic"}
"""PIL's numbers."""
_SHORTEST_EDGE_WHEN_A_NUMBER = ("CLIP", "Bit")
"""Processors whose `size`, where it is one number, is the shorter side's; others squash to a square."""
_HALF = (0.5, 0.5, 0.5)


def read_preprocessing(folder: Path) -> Preprocessing | None:
    """What the folder's file says; None where there is no such file. ValueError naming the key."""
    path = folder / PREPROCESSING
    if not path.is_file():
        return None
    try:
        return preprocessing_of(json.loads(path.read_text(encoding="utf-8")), str(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"model.pretrained: {path} is not JSON: {error}") from error


def preprocessing_of(content: Mapping[str, Any], source: str) -> Preprocessing:
    """The file's content in our words. ValueError naming the key that has no counterpart."""
    field = f"model.pretrained: {source}"
    for key in ("do_resize", "do_rescale"):
        check(content.get(key, True) is True, f"{field}: {key}", content.get(key), "it must be true")
    scale = content.get("rescale_factor", 1 / 255)
    check(math.isclose(scale, 1 / 255, rel_tol=1e-6), f"{field}: rescale_factor", scale, "it must be 1/255")
    filter = content.get("resample", 2)
    check(filter in FILTERS, f"{field}: resample", filter, f"PIL's filters {FILTERS} are supported")
    resized, squash = _resized(content, field)
    crop = _pair(content.get("crop_size"), field, "crop_size") if content.get("do_center_crop", False) else None
    fixed = squash or crop is not None
    check(fixed, f"{field}: size", content.get("size"), "without a centre crop it leaves images of any shape")
    image_size = crop or resized
    normalizes = content.get("do_normalize", True)
    return Preprocessing(
        image_size=image_size,
        crop_fraction=_fraction(image_size, resized, field),
        squash=squash,
        interpolation=FILTERS[filter],
        mean=_channels(content.get("image_mean", _HALF)) if normalizes else (0.0, 0.0, 0.0),
        std=_channels(content.get("image_std", _HALF)) if normalizes else (1.0, 1.0, 1.0),
    )


def _resized(content: Mapping[str, Any], field: str) -> tuple[tuple[int, int], bool]:
    """(height, width) after resizing (of the shorter side, twice), and whether the shape is lost."""
    size = content.get("size")
    processor = str(content.get("image_processor_type", content.get("feature_extractor_type", "")))
    if isinstance(size, dict) and set(size) == {"shortest_edge"}:
        return (size["shortest_edge"], size["shortest_edge"]), False
    if isinstance(size, int) and processor.startswith(_SHORTEST_EDGE_WHEN_A_NUMBER):
        return (size, size), False
    return _pair(size, field, "size"), True


def _pair(size: Any, field: str, key: str) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    sides = isinstance(size, dict) and set(size) == {"height", "width"}
    check(sides, f"{field}: {key}", size, "a number, or height and width, or shortest_edge with a centre crop")
    return size["height"], size["width"]


def _fraction(image_size: tuple[int, int], resized: tuple[int, int], field: str) -> float:
    """The fraction whose floor(image_size / fraction) is `resized`, to the pixel, on both sides."""
    fraction = image_size[0] / resized[0]
    exact = (fraction, math.nextafter(fraction, 0), math.nextafter(fraction, 1))
    fits = (f for f in exact if all(math.floor(i / f) == r for i, r in zip(image_size, resized, strict=True)))
    found = next(fits, None)
    rule = f"one crop_fraction must lead from {resized} to {image_size}"
    check(found is not None, f"{field}: crop_size", image_size, rule)
    assert found is not None
    return found


def _channels(values: Any) -> tuple[float, float, float]:
    red, green, blue = values
    return float(red), float(green), float(blue)
