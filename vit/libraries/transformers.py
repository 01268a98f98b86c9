"""Hugging Face's transformers: the hub, image processors as `Preprocessing`, its own models.

`preprocessor_config.json` has several formats (`size` as a number, as height and width, as the shortest edge); settings
without a counterpart in `Preprocessing` are refused. The crop may differ by one pixel: where an odd number of rows or
columns is cut off, transformers rounds its corner down, and torchvision, timm and this package to the even one.
Downloads go through huggingface_hub and its cache, which works offline.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.config import Interpolation, Preprocessing, check
from vit.libraries import NEVER_TRAINED, LibraryModel, Provenance

INDEX = "model.safetensors.index.json"
PREPROCESSING = "preprocessor_config.json"
FILTERS: dict[int, Interpolation] = {0: "nearest", 2: "bilinear", 3: "bicubic"}
"""By PIL's numbers."""
_SHORTEST_EDGE_WHEN_A_NUMBER = ("CLIP", "Bit")
"""Processors for which `size`, if one number, is the shorter side; others squash to a square."""
_HALF = (0.5, 0.5, 0.5)
MASKED = "vit_mae"
"""The kind of model that hides patches at random, and shuffles the others, unless told otherwise."""


# ------------------------------------------------------------------ the hub


def fetch_folder(name: str, *others: str, weights: bool = True) -> Path:
    """The cache's folder of `name`, with its weights and those of `others` that exist.

    ValueError, in one line, for files that cannot be downloaded.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        folder = Path(hf_hub_download(name, "config.json")).parent
        if weights:
            _fetch_weights(name)
        for other in others:
            _fetch_if_present(name, other)
    except (OSError, ValueError, EntryNotFoundError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"model.pretrained: {name!r} could not be fetched from the hub ({reason}); "
            "without a network, give the path of a folder"
        ) from error
    return folder


def _fetch_weights(name: str) -> None:
    from huggingface_hub import hf_hub_download

    if _fetch_if_present(name, "model.safetensors"):
        return
    index = _fetch_if_present(name, INDEX)
    if index is None:
        hf_hub_download(name, "pytorch_model.bin")
        return
    for shard in sorted(set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values())):
        hf_hub_download(name, shard)


def _fetch_if_present(name: str, file: str) -> str | None:
    """A file's path; None where the hub, or offline the cache, has no such file."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        path: str = hf_hub_download(name, file)
    except EntryNotFoundError:
        return None
    return path


# ------------------------------------------------------------------ image processors


def read_preprocessing(folder: Path) -> Preprocessing | None:
    """The preprocessing of a folder; None without a file for it. ValueError naming an unsupported key."""
    path = folder / PREPROCESSING
    if not path.is_file():
        return None
    try:
        return preprocessing_of(json.loads(path.read_text(encoding="utf-8")), str(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"model.pretrained: {path} is not JSON: {error}") from error


def preprocessing_of(content: Mapping[str, Any], source: str) -> Preprocessing:
    """Convert the content of `preprocessor_config.json`. ValueError naming an unsupported key."""
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
    """(height, width) after resizing, and True if that changes the aspect; else both are the shorter side."""
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
    """The crop fraction for which floor(image_size / fraction) is exactly `resized`, on both sides."""
    fraction = image_size[0] / resized[0]
    exact = (fraction, math.nextafter(fraction, 0), math.nextafter(fraction, 1))
    fits = (f for f in exact if all(math.floor(i / f) == r for i, r in zip(image_size, resized, strict=True)))
    found = next(fits, None)
    rule = f"no crop_fraction leads from {resized} to {image_size}"
    check(found is not None, f"{field}: crop_size", image_size, rule)
    assert found is not None
    return found


def _channels(values: Any) -> tuple[float, float, float]:
    red, green, blue = values
    return float(red), float(green), float(blue)


# ------------------------------------------------------------------ its own models


class TransformersModel(nn.Module):
    """A model of transformers that returns one tensor: logits, else image embedding or pooled features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def config(self) -> Any:
        """transformers' configuration, with image and patch size."""
        return self.model.config

    def forward(self, images: Tensor) -> Tensor:
        masked = {"noise": _kept_in_order(self.model, images)} if self.config.model_type == MASKED else {}
        return output_tensor(self.model(pixel_values=images, **masked))


def _kept_in_order(model: Any, images: Tensor) -> Tensor:
    """For each patch the number by which MAE sorts what it keeps, `b n`: its place, so that no patch is moved."""
    patches = model.embeddings.patch_embeddings.num_patches
    return torch.arange(patches, device=images.device).expand(len(images), -1)


def output_tensor(output: Any) -> Tensor:
    """Logits, image embedding, pooled features or class token: the counterpart of our model's output."""
    for name in ("logits", "image_embeds", "pooler_output"):
        found: Tensor | None = getattr(output, name, None)
        if found is not None:
            return found
    first: Tensor = output.last_hidden_state[:, 0]
    return first


def class_names_of(settings: Mapping[str, Any]) -> list[str]:
    """Class names in a `config.json`; empty if they are the library's placeholders, `LABEL_0` and so on."""
    names = [name for _, name in sorted((settings.get("id2label") or {}).items(), key=lambda item: int(item[0]))]
    return [] if not names or names[0] == "LABEL_0" else names


def provenance_of(name: str) -> Provenance:
    """The provenance of a name on the hub, or of a folder."""
    return Provenance("hf", recipe=f"Hugging Face {Path(name).name}")


def build(folder: Path, name: str, *, pretrained: bool, num_classes: int | None = None) -> LibraryModel:
    """transformers' own model of a folder's `config.json`, with the head of its weights.

    `num_classes`: for random weights. ValueError where transformers is missing or does not know the model.
    """
    try:
        from transformers import AutoConfig, AutoModel, AutoModelForImageClassification
    except ImportError as error:
        raise ValueError("model.pretrained: hf: needs the package transformers; pip install 'vit[text]'") from error

    try:
        config = AutoConfig.from_pretrained(folder)
        architectures = config.architectures or ["ForImageClassification"]
        classifies = any("ForImageClassification" in each for each in architectures)
        if config.model_type == MASKED:
            config.mask_ratio = 0.0
        if not pretrained and num_classes is not None:
            config.num_labels = num_classes
        kind = AutoModelForImageClassification if classifies else AutoModel
        model = kind.from_pretrained(folder, config=config) if pretrained else kind.from_config(config)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"model.pretrained: {name!r} could not be built by transformers ({reason})") from error
    names = class_names_of(config.to_dict()) if pretrained and classifies else []
    provenance = provenance_of(name) if pretrained else NEVER_TRAINED
    vision = getattr(model, "vision_model", None)  # the image tower of a model with a text tower
    tower = vision if not classifies and isinstance(vision, nn.Module) and hasattr(model, "text_model") else model
    return LibraryModel(
        TransformersModel(tower), read_preprocessing(folder), names, config.num_labels if classifies else 0, provenance
    )


def check_image_size(model: nn.Module, size: tuple[int, int], name: str) -> None:
    """ValueError for another size than the configuration's."""
    own = getattr(getattr(model, "config", None), "image_size", None)
    pair = (own, own) if isinstance(own, int) else None if own is None else tuple(own)
    check(pair in (None, size), "image_size", size, f"transformers' {name} takes images of {pair} pixels only")
