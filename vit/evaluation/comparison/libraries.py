"""Other libraries' classifiers as those libraries build them, each with the preprocessing that came with its weights.

timm, torchvision and transformers are imported only when a model of theirs is asked for. Knows no data set. A model
whose preprocessing cannot be expressed here is refused, for it would be judged on images that it was not made for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.config import Preprocessing, check, nearest
from vit.evaluation.comparison.provenance import RANDOM, Provenance, from_tag

LIBRARIES = ("timm", "torchvision", "hf")
_FILTERS = ("bilinear", "bicubic", "nearest")


@dataclass(frozen=True)
class Head:
    """A head of random weights has as many classes as are asked for; a trained one has those that it was trained on."""

    num_classes: int
    seed: int = 0


@dataclass(frozen=True)
class LibraryModel:
    model: nn.Module
    provenance: Provenance
    class_names: list[str]
    """Empty where the library does not name them."""
    num_classes: int


def load_library_model(source: str, random_head: Head | None = None) -> LibraryModel:
    """`timm:NAME`, `torchvision:NAME` or `hf:NAME`; with `random_head` built without weights, always the same ones.

    ValueError for an unknown name, for weights that cannot be fetched and for preprocessing that is not supported.
    """
    library, _, name = source.partition(":")
    load = {"timm": _from_timm, "torchvision": _from_torchvision, "hf": _from_hf}[library]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0 if random_head is None else random_head.seed)
        try:
            return load(name, random_head)
        except (OSError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            rule = f"it could not be built ({reason}); without a network give --random_weights, or a model of your own"
            raise ValueError(f"model: {source!r} is not valid: {rule}") from error


def _checked(preprocessing: dict[str, Any], source: str) -> Preprocessing:
    filter = preprocessing["interpolation"]
    check(filter in _FILTERS, "model", source, f"its images are resized by {filter!r}, which is not supported here")
    return Preprocessing(**preprocessing)


def _provenance(
    library: str, said: tuple[tuple[str, ...], str, str], preprocessing: Preprocessing, *, is_random: bool
) -> Provenance:
    if is_random:
        return Provenance(RANDOM, (), "none", "none", preprocessing)
    return Provenance(library, *said, preprocessing)


# ------------------------------------------------------------------ timm


def _from_timm(name: str, random_head: Head | None) -> LibraryModel:
    import timm
    from timm.data import resolve_model_data_config

    architecture = name.split(".")[0]
    if not timm.is_model(architecture):
        raise ValueError(f"model: timm has no model {name!r}; {nearest(architecture, timm.list_models())}")
    options = {} if random_head is None else {"num_classes": random_head.num_classes}
    model = timm.create_model(name, pretrained=random_head is None, **options)
    check(model.num_classes > 0, "model", f"timm:{name}", "it has no head; its features alone classify nothing")
    settings = resolve_model_data_config(model)
    mode = settings["crop_mode"]
    check(mode == "center", "model", f"timm:{name}", f"its images are cut by {mode!r}, which is not supported here")
    preprocessing = _checked(
        {
            "image_size": tuple(settings["input_size"][1:]),
            "crop_fraction": settings["crop_pct"],
            "interpolation": settings["interpolation"],
            "mean": tuple(settings["mean"]),
            "std": tuple(settings["std"]),
        },
        f"timm:{name}",
    )
    said = from_tag(architecture, model.pretrained_cfg.get("tag") or "")
    provenance = _provenance("timm", said, preprocessing, is_random=random_head is not None)
    return LibraryModel(model, provenance, [], model.num_classes)


# ------------------------------------------------------------------ torchvision


def _from_torchvision(name: str, random_head: Head | None) -> LibraryModel:
    """`vit_b_16` takes torchvision's default weights, `vit_b_16.IMAGENET1K_V1` those."""
    from torchvision import models

    architecture, _, wanted = name.partition(".")
    known = models.list_models(module=models)
    if architecture not in known:
        raise ValueError(f"model: torchvision has no classifier {architecture!r}; {nearest(architecture, known)}")
    choices = {entry.name: entry for entry in models.get_model_weights(architecture)}
    if wanted and wanted not in choices:
        raise ValueError(f"model: torchvision's {architecture} has no weights {wanted!r}; {nearest(wanted, choices)}")
    entry = choices[wanted] if wanted else models.get_model_weights(architecture).DEFAULT
    preprocessing = _torchvision_preprocessing(entry.transforms(), f"torchvision:{name}")
    names = list(entry.meta["categories"])
    if random_head is None:
        model = models.get_model(architecture, weights=entry)
    else:
        model = models.get_model(architecture, weights=None, num_classes=random_head.num_classes)
        names = []
    data = ("Instagram (3.6 B, SWAG)", "ImageNet-1k") if "SWAG" in entry.name else ("ImageNet-1k",)
    said = (data, f"torchvision {entry.name}", "none said")
    provenance = _provenance("torchvision", said, preprocessing, is_random=random_head is not None)
    return LibraryModel(model, provenance, names, len(names) if random_head is None else random_head.num_classes)


def _torchvision_preprocessing(transform: Any, source: str) -> Preprocessing:
    (crop,), (resize,) = transform.crop_size, transform.resize_size
    settings = {
        "image_size": (crop, crop),
        "crop_fraction": crop_fraction(crop, resize),
        "interpolation": transform.interpolation.value,
        "mean": tuple(transform.mean),
        "std": tuple(transform.std),
        "antialias": transform.antialias is not False,
    }
    return _checked(settings, source)


def crop_fraction(crop: int, resize: int) -> float:
    """The fraction whose floor(crop / fraction) is `resize`, to the pixel."""
    fraction = crop / resize
    return fraction if math.floor(crop / fraction) == resize else math.nextafter(fraction, 0)


# ------------------------------------------------------------------ Hugging Face


class _Logits(nn.Module):
    """A transformers classifier whose answer is its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(pixel_values=images).logits
        return logits


_SQUASHED = (
    "{source} was made for images squashed to a square; here, as for every other model, the shorter side is resized "
    "and the centre cut out, which differs unless the images are square."
)


def _from_hf(name: str, random_head: Head | None) -> LibraryModel:
    """A name on the hub, or a folder with `config.json`, `preprocessor_config.json` and the weights."""
    try:
        from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageClassification
    except ImportError as error:
        raise ValueError("model: hf: needs the package transformers; pip install 'vit[text]'") from error

    config = AutoConfig.from_pretrained(name)
    processor = AutoImageProcessor.from_pretrained(name).to_dict()
    preprocessing = _hf_preprocessing(processor, f"hf:{name}")
    if random_head is None:
        model = AutoModelForImageClassification.from_pretrained(name)
    else:
        config.num_labels = random_head.num_classes
        model = AutoModelForImageClassification.from_config(config)
    labels = [model.config.id2label[number] for number in range(model.config.num_labels)]
    named = [] if random_head is not None or labels[0] == "LABEL_0" else labels
    said = (("not said",), f"Hugging Face {Path(name).name}", "none said")
    provenance = _provenance("hf", said, preprocessing, is_random=random_head is not None)
    if not processor.get("do_center_crop"):
        provenance = replace(provenance, caveat=_SQUASHED.format(source=f"hf:{name}"))
    return LibraryModel(_Logits(model), provenance, named, model.config.num_labels)


def _hf_preprocessing(settings: dict[str, Any], source: str) -> Preprocessing:
    """A processor's settings; one without a centre crop squashes the image (`_SQUASHED`)."""
    size = settings.get("size") or {}
    crop = settings.get("crop_size") if settings.get("do_center_crop") else None
    shorter = int(size.get("shortest_edge") or size.get("height") or 0)
    check(shorter > 0, "model", source, f"its images are resized to {size}, which is not supported here")
    side = int(crop["height"]) if crop else shorter
    scale = settings.get("rescale_factor", 1 / 255)
    check(abs(scale * 255 - 1) < 1e-6, "model", source, f"its pixels are scaled by {scale}, which is not supported")
    filters = {0: "nearest", 2: "bilinear", 3: "bicubic"}
    return _checked(
        {
            "image_size": (side, side),
            "crop_fraction": crop_fraction(side, shorter),
            "interpolation": filters.get(settings.get("resample", 2), str(settings.get("resample"))),
            "mean": tuple(settings["image_mean"]),
            "std": tuple(settings["image_std"]),
        },
        source,
    )
