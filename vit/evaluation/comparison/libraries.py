"""Other libraries' classifiers as those libraries build them, each with the preprocessing that came with its weights.

timm, torchvision and transformers are imported only when a model of theirs is asked for. Knows no data set. A model
whose preprocessing cannot be expressed here is refused, for it would be judged on images that it was not made for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vit.config import Preprocessing, check, nearest
from vit.evaluation.comparison.provenance import RANDOM, Provenance, from_tag
from vit.weights.hf_preprocessing import preprocessing_of
from vit.weights.sources import torchvision_preprocessing
from vit.weights.timm_models import timm_preprocessing

LIBRARIES = ("timm", "torchvision", "hf")


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


def check_library_name(source: str) -> None:
    """ValueError for a name that timm or torchvision does not list; the hub's names are known to the hub alone."""
    library, _, name = source.partition(":")
    if library in ("timm", "torchvision"):
        {"timm": _check_timm, "torchvision": _check_torchvision}[library](name)


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


def _provenance(
    library: str, said: tuple[tuple[str, ...], str, str], preprocessing: Preprocessing, *, is_random: bool
) -> Provenance:
    if is_random:
        return Provenance(RANDOM, (), "none", "none", preprocessing)
    return Provenance(library, *said, preprocessing)


# ------------------------------------------------------------------ timm


def _check_timm(name: str) -> None:
    import timm

    architecture = name.split(".")[0]
    if not timm.is_model(architecture):
        raise ValueError(f"model: timm has no model {name!r}; {nearest(architecture, timm.list_models())}")


def _from_timm(name: str, random_head: Head | None) -> LibraryModel:
    import timm
    from timm.data import resolve_model_data_config

    _check_timm(name)
    architecture = name.split(".")[0]
    options = {} if random_head is None else {"num_classes": random_head.num_classes}
    model = timm.create_model(name, pretrained=random_head is None, **options)
    check(model.num_classes > 0, "model", f"timm:{name}", "it has no head; its features alone classify nothing")
    preprocessing = timm_preprocessing(resolve_model_data_config(model), f"timm:{name}")
    said = from_tag(architecture, model.pretrained_cfg.get("tag") or "")
    provenance = _provenance("timm", said, preprocessing, is_random=random_head is not None)
    return LibraryModel(model, provenance, [], model.num_classes)


# ------------------------------------------------------------------ torchvision


def _check_torchvision(name: str) -> None:
    from torchvision import models

    architecture, known = name.partition(".")[0], models.list_models(module=models)
    if architecture not in known:
        raise ValueError(f"model: torchvision has no classifier {architecture!r}; {nearest(architecture, known)}")


def _from_torchvision(name: str, random_head: Head | None) -> LibraryModel:
    """`vit_b_16` takes torchvision's default weights, `vit_b_16.IMAGENET1K_V1` those."""
    from torchvision import models

    _check_torchvision(name)
    architecture, _, wanted = name.partition(".")
    choices = {entry.name: entry for entry in models.get_model_weights(architecture)}
    if wanted and wanted not in choices:
        raise ValueError(f"model: torchvision's {architecture} has no weights {wanted!r}; {nearest(wanted, choices)}")
    entry = choices[wanted] if wanted else models.get_model_weights(architecture).DEFAULT
    preprocessing = torchvision_preprocessing(entry.transforms())
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


# ------------------------------------------------------------------ Hugging Face


class _Logits(nn.Module):
    """A transformers classifier whose answer is its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(pixel_values=images).logits
        return logits


def _from_hf(name: str, random_head: Head | None) -> LibraryModel:
    """A name on the hub, or a folder with `config.json`, `preprocessor_config.json` and the weights."""
    try:
        from transformers import AutoConfig, AutoModelForImageClassification, BaseImageProcessor
    except ImportError as error:
        raise ValueError("model: hf: needs the package transformers; pip install 'vit[text]'") from error

    config = AutoConfig.from_pretrained(name)
    settings, _ = BaseImageProcessor.get_image_processor_dict(name)
    preprocessing = preprocessing_of(settings, f"hf:{name}")
    if random_head is None:
        model = AutoModelForImageClassification.from_pretrained(name)
    else:
        config.num_labels = random_head.num_classes
        model = AutoModelForImageClassification.from_config(config)
    labels = [model.config.id2label[number] for number in range(model.config.num_labels)]
    named = [] if random_head is not None or labels[0] == "LABEL_0" else labels
    said = (("not said",), f"Hugging Face {Path(name).name}", "none said")
    provenance = _provenance("hf", said, preprocessing, is_random=random_head is not None)
    return LibraryModel(_Logits(model), provenance, named, model.config.num_labels)
