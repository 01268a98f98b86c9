"""`preprocessor_config.json` as `Preprocessing`, and the pixels of transformers' own processors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.image_folders import picture
from vit.config import Preprocessing
from vit.data.preprocessing import normalize, resize_and_crop
from vit.libraries.transformers import PREPROCESSING, preprocessing_of, read_preprocessing

IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
PROCESSORS: dict[str, tuple[str, dict[str, Any], Preprocessing]] = {
    "ViT squashes": (
        "ViTImageProcessorPil",
        {"size": {"height": 24, "width": 32}},
        Preprocessing(image_size=(24, 32), squash=True, interpolation="bilinear"),
    ),
    "DeiT squashes and cuts": (
        "DeiTImageProcessorPil",
        {"size": {"height": 36, "width": 36}, "crop_size": {"height": 32, "width": 32}} | IMAGENET,
        Preprocessing(
            image_size=(32, 32),
            crop_fraction=32 / 36,
            squash=True,
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
        ),
    ),
    "CLIP keeps the shape": (
        "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}, "do_normalize": False},
        Preprocessing(image_size=(32, 32), crop_fraction=0.8, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
    ),
}


@pytest.mark.parametrize(("name", "settings", "expected"), PROCESSORS.values(), ids=list(PROCESSORS))
def test_the_processors_own_pixels(
    name: str, settings: dict[str, Any], expected: Preprocessing, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra 'text'")
    processor = getattr(transformers, name)(**settings)
    processor.save_pretrained(tmp_path)
    found = read_preprocessing(tmp_path)
    assert found == expected
    for size in ((60, 48), (40, 90)):  # an even number of pixels is cut off: see the module
        image = picture(size, 3)
        theirs = torch.from_numpy(np.array(processor(image, return_tensors="np")["pixel_values"]))
        ours = normalize(resize_and_crop(image, found)[None], found)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


OLD: dict[str, tuple[dict[str, Any], Preprocessing]] = {
    "a number is a square": (
        {"feature_extractor_type": "ViTFeatureExtractor", "size": 224, "resample": 2},
        Preprocessing(image_size=(224, 224), squash=True, interpolation="bilinear"),
    ),
    "a number is the shorter side of CLIP": (
        {
            "feature_extractor_type": "CLIPFeatureExtractor",
            "size": 224,
            "crop_size": 224,
            "do_center_crop": True,
            "resample": 3,
        },
        Preprocessing(image_size=(224, 224)),
    ),
    "BiT of DINOv2": (
        {
            "image_processor_type": "BitImageProcessor",
            "size": {"shortest_edge": 256},
            "crop_size": {"height": 224, "width": 224},
            "do_center_crop": True,
            "resample": 3,
        },
        Preprocessing(image_size=(224, 224), crop_fraction=0.875),
    ),
}


@pytest.mark.parametrize(("content", "expected"), OLD.values(), ids=list(OLD))
def test_formats_of_several_versions(content: dict[str, Any], expected: Preprocessing) -> None:
    assert preprocessing_of(content, "file") == expected


@pytest.mark.parametrize("resized", range(224, 520, 7))
def test_the_size_before_the_crop_is_exact(resized: int) -> None:
    crop = {"crop_size": 224, "do_center_crop": True, "size": {"shortest_edge": resized}}
    assert math.floor(224 / preprocessing_of(crop, "file").crop_fraction) == resized


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "filter": ({"resample": 1}, r"resample: 1 is not valid"),
    "scale": ({"rescale_factor": 1.0}, r"rescale_factor: 1\.0 is not valid: it must be 1/255"),
    "no resize": ({"do_resize": False}, r"do_resize: False"),
    "no scale": ({"do_rescale": False}, r"do_rescale: False"),
    "any shape": ({"size": {"shortest_edge": 224}}, r"size: .*without a centre crop"),
    "longest edge": ({"size": {"longest_edge": 224}}, r"size: "),
    "no size": ({"size": None}, r"size: None"),
    "two fractions": (
        {"size": {"height": 64, "width": 64}, "crop_size": {"height": 32, "width": 48}, "do_center_crop": True},
        r"crop_size: \(32, 48\)",
    ),
}


@pytest.mark.parametrize(("changes", "line"), BROKEN.values(), ids=list(BROKEN))
def test_unsupported_keys_are_refused_by_name(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    (tmp_path / PREPROCESSING).write_text(json.dumps({"size": 224} | changes))
    with pytest.raises(ValueError, match=rf"model\.pretrained: .*preprocessor_config\.json: {line}"):
        read_preprocessing(tmp_path)


def test_no_preprocessing_without_a_file(tmp_path: Path) -> None:
    assert read_preprocessing(tmp_path) is None
    (tmp_path / PREPROCESSING).write_text("{")
    with pytest.raises(ValueError, match=r"preprocessor_config\.json is not JSON"):
        read_preprocessing(tmp_path)
