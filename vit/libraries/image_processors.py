"""Hugging Face's image processors as `Preprocessing`.

A file's keys mean what the class that it names does with them, and a missing or null key has that class's default (of
transformers 5); so only the classes in `PROCESSORS` are read. The file is `preprocessor_config.json` in any of its
formats (`size` as a number, a pair, height and width, or the shortest edge; `…FeatureExtractor`, `…Fast`), or the
`image_processor` of a `processor_config.json`.

Pixels equal those of the classes that resize with PIL. Those that resize with torchvision differ by rounding, and by
half a pixel for the nearest neighbour; DINOv3's, which has no other, does not round what it has resized.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vit.config import Interpolation, Preprocessing, check
from vit.libraries.foreign_json import ProcessorFile, check_schema, read_json

PREPROCESSING = "preprocessor_config.json"
PROCESSOR = "processor_config.json"
"""The file of models that read text too; holds the image processor in newer versions."""
FILTERS: dict[int, Interpolation] = {0: "nearest", 2: "bilinear", 3: "bicubic"}
"""By PIL's numbers."""

Channels = tuple[float, float, float]
Sides = int | tuple[int, int]
"""The shorter side, or height and width."""

_ALL: dict[str, Any] = {
    "do_resize": True,
    "do_center_crop": False,
    "do_rescale": True,
    "do_normalize": True,
    "default_to_square": True,
    "resample": 3,
    "rescale_factor": 1 / 255,
    "image_mean": (0.5, 0.5, 0.5),
    "image_std": (0.5, 0.5, 0.5),
}
_IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
_OPENAI = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
_CROPS = {"default_to_square": False, "size": 224, "do_center_crop": True, "crop_size": 224}
PROCESSORS: dict[str, dict[str, Any]] = {
    "ViT": {"size": 224, "resample": 2},
    "DeiT": {"size": 256, "do_center_crop": True, "crop_size": 224},
    "Beit": {"size": 224, "crop_size": 224},
    "Siglip": {"size": (224, 224), "default_to_square": False},
    "Blip": {"size": 384} | _OPENAI,
    "Pvt": {"size": 224} | _IMAGENET,
    "DINOv3ViT": {"size": 224, "resample": 2} | _IMAGENET,
    "Segformer": {"size": 512, "resample": 2} | _IMAGENET,
    "EfficientNet": {"size": 346, "crop_size": 289, "rescale_offset": False, "include_top": True},
    "CLIP": _CROPS | _OPENAI,
    "ChineseCLIP": _CROPS | _OPENAI,
    "Bit": _CROPS | _OPENAI,
    "MobileNetV1": _CROPS | {"size": 256, "resample": 2},
    "MobileNetV2": _CROPS | {"size": 256, "resample": 2},
    "Levit": _CROPS | _IMAGENET,
    "PoolFormer": _CROPS | _IMAGENET | {"crop_pct": 0.9},
    "ConvNext": {"default_to_square": False, "size": 384, "crop_pct": 224 / 256},
    "MobileViT": _CROPS | {"crop_size": 256, "do_normalize": False, "do_flip_channel_order": True},
}
"""The defaults of each class, by its name without `ImageProcessor`."""
_OF_MODELS = {
    "ViT": ("vit", "vit_mae", "vit_msn", "ijepa", "swin", "swinv2", "dinat", "swiftformer"),
    "DeiT": ("deit",),
    "Beit": ("beit", "data2vec-vision"),
    "Siglip": ("siglip",),
    "Blip": ("blip",),
    "Pvt": ("pvt", "pvt_v2"),
    "DINOv3ViT": ("dinov3_vit",),
    "Segformer": ("segformer",),
    "EfficientNet": ("efficientnet",),
    "CLIP": ("clip", "metaclip_2", "mlcd"),
    "ChineseCLIP": ("chinese_clip",),
    "Bit": ("bit", "dinov2", "focalnet", "hiera"),
    "MobileNetV1": ("mobilenet_v1",),
    "MobileNetV2": ("mobilenet_v2",),
    "Levit": ("levit",),
    "PoolFormer": ("poolformer",),
    "ConvNext": ("convnext", "convnextv2", "cvt", "regnet", "resnet"),
    "MobileViT": ("mobilevit", "mobilevitv2"),
}
"""The `model_type`s whose processor it is where the file names none, as the oldest files do."""


def stated_preprocessing(folder: Path) -> tuple[Preprocessing | None, str]:
    """The preprocessing of a folder, and why there is none; empty where there is one, or no file for it.

    ValueError for a damaged file, as opposed to one that says what has no counterpart here.
    """
    stated = _read_settings(folder)
    if stated is None:
        return None, ""
    try:
        return preprocessing_of(*stated), ""
    except ValueError as error:
        return None, str(error).removeprefix("model.pretrained: ")


def _read_settings(folder: Path) -> tuple[dict[str, Any], str, str] | None:
    """The settings, their file and the folder's `model_type`; None without a file, or with nothing in it."""
    nested = _read(folder / PROCESSOR).get("image_processor")
    content = nested if isinstance(nested, dict) else _read(folder / PREPROCESSING)
    source = folder / (PROCESSOR if content is nested else PREPROCESSING)
    if not content:
        return None
    check_schema(content, ProcessorFile, f"model.pretrained: {source}")
    return content, str(source), str(_read(folder / "config.json").get("model_type", ""))


def _read(path: Path) -> dict[str, Any]:
    """A file's JSON object; empty where there is no file."""
    return read_json(path) if path.is_file() else {}


def preprocessing_of(content: Mapping[str, Any], source: str, model_type: str = "") -> Preprocessing:
    """Convert the settings of an image processor. `model_type` tells its class where they do not.

    ValueError naming the class that is not known, or the key that has no counterpart here.
    """
    field = f"model.pretrained: {source}"
    name = _class_of(content, field, model_type)
    settings = _ALL | PROCESSORS[name] | {key: value for key, value in content.items() if value is not None}
    check(settings["do_resize"] is True, f"{field}: do_resize", settings["do_resize"], "it must be true")
    for key in ("do_pad", "use_square_size"):
        check(not settings.get(key), f"{field}: {key}", settings.get(key), "it is not supported")
    filter = settings["resample"]
    check(filter in FILTERS, f"{field}: resample", filter, f"PIL's filters {FILTERS} are supported")
    resized, crop = _resized(name, settings, field)
    if settings["do_center_crop"]:
        asked = _sides(settings.get("crop_size"), True, field, "crop_size")
        check(crop in (None, asked), f"{field}: crop_size", asked, f"{name} cuts out {crop} itself")
        check(isinstance(asked, tuple), f"{field}: crop_size", asked, "it has a height and a width")
        crop = asked if isinstance(asked, tuple) else None
    squash = isinstance(resized, tuple)
    check(squash or crop is not None, f"{field}: size", resized, f"{name} leaves images of any shape with it")
    before = resized if isinstance(resized, tuple) else (resized, resized)
    image_size = before if crop is None else crop
    mean, std = _normalization(name, settings, field)
    return Preprocessing(
        image_size=image_size,
        crop_fraction=_fraction(image_size, before, field),
        squash=squash,
        crop_rounding="down",
        interpolation=FILTERS[filter],
        mean=mean,
        std=std,
        channel_order="bgr" if settings.get("do_flip_channel_order") and name == "MobileViT" else "rgb",
    )


def processor_of(preprocessing: Preprocessing) -> dict[str, Any]:
    """The settings of the class that prepares images like this, the inverse of `preprocessing_of`.

    ValueError naming what no class does. Where an odd number of pixels is cut off, all of them round down.
    """
    rule = "Hugging Face's image processors have no such setting"
    check(preprocessing.antialias, "data.antialias", False, rule)
    check(preprocessing.channel_order == "rgb", "preprocessing.channel_order", preprocessing.channel_order, rule)
    height, width = preprocessing.image_size
    square = preprocessing.squash or height == width
    rule = "they resize to a shape or by the shorter side; set data.squash"
    check(square, "model.image_size", preprocessing.image_size, rule)
    before = [math.floor(side / preprocessing.crop_fraction) for side in preprocessing.image_size]
    crops = not preprocessing.squash or before != [height, width]
    return {
        "image_processor_type": "BitImageProcessor" if crops else "ViTImageProcessor",
        "do_resize": True,
        "size": dict(zip(("height", "width"), before, strict=True))
        if preprocessing.squash
        else {"shortest_edge": before[0]},
        "resample": next(number for number, name in FILTERS.items() if name == preprocessing.interpolation),
        **({"do_center_crop": True, "crop_size": {"height": height, "width": width}} if crops else {}),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "do_convert_rgb": True,
    }


def _class_of(content: Mapping[str, Any], field: str, model_type: str) -> str:
    """The class in `PROCESSORS`. ValueError for another one, and where nothing names one."""
    stated = str(content.get("image_processor_type") or content.get("feature_extractor_type") or "")
    if not stated:
        found = next((name for name, models in _OF_MODELS.items() if model_type in models), None)
        rule = "it is missing, and nothing else tells how images are prepared"
        if found is None:
            raise ValueError(f"{field}: image_processor_type: {rule}")
        return found
    name = stated.removesuffix("Fast").removesuffix("Pil")
    name = name.removesuffix("FeatureExtractor").removesuffix("ImageProcessor")
    if name not in PROCESSORS:
        raise ValueError(f"{field}: the image processor {stated} is not one of {', '.join(PROCESSORS)}")
    return name


def _resized(name: str, settings: Mapping[str, Any], field: str) -> tuple[Sides, tuple[int, int] | None]:
    """The size that an image is resized to, and the crop that the class then makes without being asked."""
    size = _sides(settings["size"], settings["default_to_square"], field, "size")
    if name == "Levit" and isinstance(size, int):
        return int(256 / 224 * size), None
    if name not in ("ConvNext", "PoolFormer"):
        return size, None
    fraction = settings["crop_pct"]
    valid = isinstance(fraction, int | float) and 0 < fraction <= 1
    check(valid, f"{field}: crop_pct", fraction, "it must be above 0 and at most 1")
    if name == "PoolFormer":
        if isinstance(size, tuple) and size[0] != size[1]:
            return (int(size[0] / fraction), int(size[1] / fraction)), None
        return int((size if isinstance(size, int) else size[0]) / fraction), None
    check(isinstance(size, int), f"{field}: size", size, "ConvNext takes the shortest edge alone")
    assert isinstance(size, int)
    # from 384 pixels on nothing is cut off
    return ((size, size), None) if size >= 384 else (int(size / fraction), (size, size))


def _sides(value: Any, square: bool, field: str, key: str) -> Sides:
    """The shorter side, or height and width, of `size` or `crop_size` in any format."""
    if isinstance(value, dict):
        named = [value.get("height"), value.get("width")] if set(value) == {"height", "width"} else None
        value = value["shortest_edge"] if set(value) == {"shortest_edge"} else named
        square = False
    sides = list(value) if isinstance(value, list | tuple) else [value] * (2 if square else 1)
    valid = len(sides) <= 2 and all(isinstance(side, int) and side > 0 for side in sides)
    rule = "a number of pixels, height and width, or shortest_edge"
    check(valid, f"{field}: {key}", value, rule)
    return (sides[0], sides[1]) if len(sides) == 2 else int(sides[0])


def _fraction(image_size: tuple[int, int], resized: tuple[int, int], field: str) -> float:
    """The crop fraction for which floor(image_size / fraction) is exactly `resized`, on both sides."""
    fits = all(side <= before for side, before in zip(image_size, resized, strict=True))
    rule = f"images of {resized} would be padded to it, which is not supported"
    check(fits, f"{field}: crop_size", image_size, rule)
    fraction = image_size[0] / resized[0]
    exact = (fraction, math.nextafter(fraction, 0), math.nextafter(fraction, 1))
    equal = (f for f in exact if all(math.floor(i / f) == r for i, r in zip(image_size, resized, strict=True)))
    found = next(equal, None)
    check(found is not None, f"{field}: crop_size", image_size, f"no crop_fraction leads from {resized} to it")
    assert found is not None
    return found


def _normalization(name: str, settings: Mapping[str, Any], field: str) -> tuple[Channels, Channels]:
    """Mean and std that do all that the class does to pixels between 0 and 1: scale, shift, normalise (twice)."""
    factor = settings["rescale_factor"] if settings["do_rescale"] else 1.0
    valid = isinstance(factor, int | float) and factor > 0
    check(valid, f"{field}: rescale_factor", factor, "it must be a number above 0")
    own_mean, own_std = (_channels(settings[key], field, key) for key in ("image_mean", "image_std"))
    normalizes = settings["do_normalize"] and name != "MobileViT"
    offset = 1.0 if name == "EfficientNet" and settings["rescale_offset"] and settings["do_rescale"] else 0.0
    again = name == "EfficientNet" and settings["include_top"]
    brightest = 1.0 if math.isclose(factor, 1 / 255, rel_tol=1e-6) else 255 * factor
    mean, std = [], []
    for centre, spread in zip(own_mean, own_std, strict=True):
        mean.append((offset + (centre if normalizes else 0.0)) / brightest)
        std.append((spread if normalizes else 1.0) * (spread if again else 1.0) / brightest)
    return _channels(mean, field, "image_mean"), _channels(std, field, "image_std")


def _channels(values: Any, field: str, key: str) -> Channels:
    """A number for each colour, or one for all."""
    each = [values] * 3 if isinstance(values, int | float) else values
    valid = isinstance(each, list | tuple) and len(each) == 3 and all(isinstance(one, int | float) for one in each)
    check(valid, f"{field}: {key}", values, "it must be three numbers")
    return float(each[0]), float(each[1]), float(each[2])
