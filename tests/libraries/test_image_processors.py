"""Image processors of transformers as `Preprocessing`: the pixels of the classes themselves, on photographs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vit.config import Preprocessing
from vit.data.preprocessing import normalize, resize_and_crop
from vit.libraries.image_processors import (
    PREPROCESSING,
    PROCESSOR,
    PROCESSORS,
    preprocessing_of,
    stated_preprocessing,
)

SIDES = ((427, 640), (411, 333), (200, 301), (97, 161), (256, 256), (224, 224))
"""(height, width), cut out of photographs: odd and even, upright and flat, larger and smaller than the models'."""
NORMAL = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"{name} by default": (name, {}) for name in PROCESSORS if name != "MobileViT"},
    "ViT not square": ("ViT", {"size": {"height": 96, "width": 128}} | NORMAL),
    "ViT in the old format": ("ViT", {"size": 224, "resample": 3} | NORMAL),
    "ViT nearest": ("ViT", {"size": 100, "resample": 0}),
    "ViT not normalised": ("ViT", {"do_normalize": False}),
    "ViT of pixels to 2": ("ViT", {"rescale_factor": 1 / 127.5} | NORMAL),
    "DeiT": ("DeiT", {"size": 438, "crop_size": 384}),
    "BEiT crops": ("Beit", {"size": 256, "crop_size": 224, "do_center_crop": True}),
    "SigLIP's shorter side": ("Siglip", {"size": 128, "do_center_crop": True, "crop_size": 128}),
    "CLIP in the old format": ("CLIP", {"size": 224, "crop_size": 224, "do_center_crop": True, "resample": 3}),
    "CLIP squashes": ("CLIP", {"size": {"height": 224, "width": 224}, "do_center_crop": False}),
    "BiT of DINOv2": ("Bit", {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}} | NORMAL),
    "odd crop": ("Bit", {"size": {"shortest_edge": 97}, "crop_size": {"height": 64, "width": 64}}),
    "ConvNeXt, old": ("ConvNext", {"size": 224, "crop_pct": 0.875} | NORMAL),
    "ConvNeXt, new": ("ConvNext", {"size": {"shortest_edge": 224}, "crop_pct": 0.95} | NORMAL),
    "ConvNeXt squashes": ("ConvNext", {"size": {"shortest_edge": 384}, "crop_pct": 0.95}),
    "ResNet": ("ConvNext", {"size": 224, "crop_pct": 0.875, "resample": 3, "do_center_crop": None} | NORMAL),
    "LeViT squashes": ("Levit", {"size": {"height": 240, "width": 240}}),
    "PoolFormer": ("PoolFormer", {"size": 224, "crop_pct": 0.95, "crop_size": 224}),
    "PoolFormer's square": ("PoolFormer", {"size": {"height": 224, "width": 224}, "crop_pct": 1.0}),
    "MobileViT": ("MobileViT", {"size": 288, "crop_size": 256, "resample": 2}),
    "MobileViT not flipped": ("MobileViT", {"size": 288, "do_flip_channel_order": False}),
    "EfficientNet": ("EfficientNet", {"size": 224, "resample": 0, "image_std": [0.4785, 0.4732, 0.4743]}),
    "EfficientNet shifted": ("EfficientNet", {"rescale_factor": 1 / 127.5, "rescale_offset": True}),
    "EfficientNet headless": ("EfficientNet", {"include_top": False, "do_center_crop": True} | NORMAL),
    "EfficientNet's second only": ("EfficientNet", {"do_normalize": False} | NORMAL),
}
"""A class and the keys that its file has."""


def photographs() -> list[Image.Image]:
    """Parts of three photographs that packages carry, of the shapes in `SIDES`."""
    from matplotlib.cbook import get_sample_data
    from sklearn.datasets import load_sample_images

    opened: Any = get_sample_data("grace_hopper.jpg")
    with opened as file:
        hopper = np.asarray(Image.open(file).convert("RGB"))
    pictures = [*load_sample_images().images, hopper]
    return [Image.fromarray(pictures[i % 3][:height, :width]) for i, (height, width) in enumerate(SIDES)]


def ours(image: Image.Image, preprocessing: Preprocessing) -> Tensor:
    return normalize(resize_and_crop(image, preprocessing)[None], preprocessing)


def processor_of(name: str, settings: Mapping[str, Any], backend: str) -> Any:
    """A processor of transformers 5, `backend` Pil or none; DINOv3 has none with PIL."""
    transformers = pytest.importorskip("transformers", minversion="5.0", reason="has a class for either backend")
    return getattr(transformers, f"{name}ImageProcessor{'' if name == 'DINOv3ViT' else backend}")(**settings)


@pytest.mark.parametrize(("name", "settings"), SETTINGS.values(), ids=list(SETTINGS))
def test_pixels_are_those_of_the_class(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """From the keys as an old file has them, and from the file that the class itself writes."""
    processor = processor_of(name, settings, "Pil")
    processor.save_pretrained(tmp_path)
    found = preprocessing_of({"image_processor_type": f"{name}ImageProcessor"} | settings, "file")
    assert stated_preprocessing(tmp_path) == (found, "")
    level = 1.01 / 255 / min(found.std) if name == "DINOv3ViT" else 0.0  # it does not round what it has resized
    for image in photographs():
        theirs = torch.from_numpy(np.array(processor(image, return_tensors="np")["pixel_values"]))
        torch.testing.assert_close(ours(image, found), theirs, rtol=1e-5, atol=2e-5 + level)


@pytest.mark.parametrize("name", [name for name in PROCESSORS if name not in ("DINOv3ViT", "MobileViT")])
def test_torchvisions_backend_differs_by_rounding(name: str) -> None:
    """A wrong size, crop or filter would change photographs by dozens of levels."""
    processor = processor_of(name, {}, "")
    found = preprocessing_of({"image_processor_type": f"{name}ImageProcessorFast"}, "file")
    for image in photographs():
        difference = ours(image, found) - processor(image, return_tensors="pt")["pixel_values"]
        levels = difference.abs() * torch.tensor(found.std)[:, None, None] * 255
        assert (levels > 2.5).double().mean() < 2e-4
        assert levels.mean() < 0.2


@pytest.mark.parametrize("name", PROCESSORS)
def test_defaults_are_those_of_the_class(name: str) -> None:
    for backend in ("", "Pil"):
        processor = processor_of(name, {}, backend)
        for key, value in preprocessing_defaults(name).items():
            theirs = getattr(processor, key)
            theirs = {each: side for each, side in dict(theirs).items() if side} if "size" in key and theirs else theirs
            assert theirs == value or not (theirs or value), key


def preprocessing_defaults(name: str) -> dict[str, Any]:
    """The table's, sizes as dictionaries."""
    defaults = dict(PROCESSORS[name])
    for key in {"size", "crop_size"} & set(defaults):
        size = defaults[key]
        is_side = isinstance(size, int) and key == "size" and not defaults.get("default_to_square", True)
        height, width = (size, size) if isinstance(size, int) else size
        defaults[key] = {"shortest_edge": size} if is_side else {"height": height, "width": width}
    return defaults


NAMES: dict[str, tuple[dict[str, Any], str, Preprocessing]] = {
    "feature extractor": (
        {"feature_extractor_type": "ConvNextFeatureExtractor", "size": 224, "crop_pct": 0.875} | NORMAL,
        "resnet",
        Preprocessing(
            image_size=(224, 224),
            crop_fraction=0.875,
            crop_rounding="down",
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
        ),
    ),
    "by the model": (
        {"size": 224, "do_resize": True},
        "vit",
        Preprocessing(image_size=(224, 224), squash=True, crop_rounding="down", interpolation="bilinear"),
    ),
    "fast, with nulls": (
        {"image_processor_type": "MobileViTImageProcessorFast", "size": {"shortest_edge": 288}, "do_normalize": None},
        "",
        Preprocessing(
            image_size=(256, 256),
            crop_fraction=256 / 288,
            crop_rounding="down",
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            channel_order="bgr",
        ),
    ),
}


@pytest.mark.parametrize(("content", "model", "expected"), NAMES.values(), ids=list(NAMES))
def test_the_class_is_found_in_every_format(content: dict[str, Any], model: str, expected: Preprocessing) -> None:
    assert preprocessing_of(content, "file", model) == expected


@pytest.mark.parametrize("resized", range(224, 520, 7))
def test_the_size_before_the_crop_is_exact(resized: int) -> None:
    content = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": resized}}
    assert math.floor(224 / preprocessing_of(content, "file").crop_fraction) == resized


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "class": (
        {"image_processor_type": "DonutImageProcessor"},
        "the image processor DonutImageProcessor is not one of ViT, DeiT, .*MobileViT$",
    ),
    "no class": ({"image_processor_type": None}, "image_processor_type: it is missing"),
    "filter": ({"resample": 1}, r"resample: 1 is not valid"),
    "scale": ({"rescale_factor": "1/255"}, r"rescale_factor: '1/255' is not valid: it must be a number above 0"),
    "no resize": ({"do_resize": False}, r"do_resize: False"),
    "padded": ({"do_pad": True}, r"do_pad: True is not valid: it is not supported"),
    "KOSMOS's square": (
        {"image_processor_type": "CLIPImageProcessor", "use_square_size": True},
        "use_square_size: True is not valid: it is not supported",
    ),
    "any shape": ({"size": {"shortest_edge": 224}}, r"size: 224 is not valid: ViT leaves images of any shape"),
    "longest edge": ({"size": {"longest_edge": 224}}, r"size: .* is not valid: a number of pixels, height and width"),
    "text": ({"size": "224"}, r"size: '224'"),
    "two means": ({"image_mean": [0.5, 0.5]}, r"image_mean: \[0\.5, 0\.5\] is not valid: it must be three numbers"),
    "small": ({"size": 224, "crop_size": 256, "do_center_crop": True}, r"crop_size: \(256, 256\) .* would be padded"),
    "two fractions": (
        {"size": {"height": 64, "width": 64}, "crop_size": {"height": 32, "width": 48}, "do_center_crop": True},
        r"crop_size: \(32, 48\)",
    ),
    "ConvNeXt's pair": (
        {"image_processor_type": "ConvNextImageProcessor", "size": {"height": 224, "width": 224}},
        r"size: \(224, 224\) is not valid: ConvNext takes the shortest edge alone",
    ),
    "crop_pct": ({"image_processor_type": "PoolFormerImageProcessor", "crop_pct": 95}, "crop_pct: 95 is not valid"),
}


DAMAGED = {BROKEN[name][1] for name in ("scale", "text", "two means", "crop_pct")}
"""Of these the file says what no processor takes, so that its folder is refused as a whole."""


@pytest.mark.parametrize(("changes", "line"), BROKEN.values(), ids=list(BROKEN))
def test_what_has_no_counterpart_is_refused_by_name(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    content = {"size": 224, "image_processor_type": "ViTImageProcessor"} | changes
    (tmp_path / PREPROCESSING).write_text(json.dumps(content))
    if line in DAMAGED:
        with pytest.raises(ValueError, match=rf"^model\.pretrained: .*preprocessor_config\.json: {line}"):
            stated_preprocessing(tmp_path)
        return
    found, reason = stated_preprocessing(tmp_path)
    assert found is None
    assert "\n" not in reason
    assert re.match(rf"{re.escape(str(tmp_path / PREPROCESSING))}: {line}", reason)


def test_no_preprocessing_without_a_file(tmp_path: Path) -> None:
    assert stated_preprocessing(tmp_path) == (None, "")
    for text, line in (("{", "is not JSON"), ("[]", "does not hold a JSON object")):
        (tmp_path / PREPROCESSING).write_text(text)
        with pytest.raises(ValueError, match=rf"preprocessor_config\.json {line}"):
            stated_preprocessing(tmp_path)


def test_the_processor_of_a_model_that_reads_text_too(tmp_path: Path) -> None:
    """Newer versions nest it in `processor_config.json`, which goes first; older ones name only a class there."""
    (tmp_path / PREPROCESSING).write_text(json.dumps({"image_processor_type": "ViTImageProcessor"}))
    (tmp_path / PROCESSOR).write_text(json.dumps({"processor_class": "CLIPProcessor"}))
    squashing, _ = stated_preprocessing(tmp_path)
    assert squashing is not None
    assert squashing.squash
    nested = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 336}, "crop_size": 336}
    (tmp_path / PROCESSOR).write_text(json.dumps({"image_processor": nested, "processor_class": "CLIPProcessor"}))
    found, _ = stated_preprocessing(tmp_path)
    assert found is not None
    assert found.image_size == (336, 336)
    assert not found.squash
