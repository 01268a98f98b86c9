"""Where weights come from: a file, a folder, timm's hub, torchvision's, Hugging Face's. Each gives tensors, the
architecture and what else it knows (preprocessing, class names, the grid of its positions).

Downloads go through the libraries' own hubs and caches. Knows no model of ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from vit.config import Preprocessing, ResNetConfig, ViTConfig, nearest
from vit.weights.files import read_file
from vit.weights.grids import Grid
from vit.weights.hf_download import fetch_folder
from vit.weights.hf_preprocessing import PREPROCESSING
from vit.weights.huggingface import holds_huggingface, read_folder
from vit.weights.layout import Layout, unwrapped
from vit.weights.layouts import find_layout, refuse_unsupported
from vit.weights.timm_models import check_timm_name, config_of, is_timm_resnet, timm_config, timm_preprocessing

RESNETS = ("resnet18", "resnet34", "resnet50")
HEADS = (
    *("head.weight", "fc.weight", "heads.head.weight", "head/bias", "classifier.weight", "cls_classifier.weight"),
    "visual_projection.weight",
)
"""Tensors of theirs with as many rows as there are classes."""
TIMM_FILES = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class Source:
    """Weights as somebody else wrote them."""

    name: str
    tensors: dict[str, Tensor]
    config: ViTConfig | ResNetConfig | None
    """The architecture; None where the tensors do not tell all of it."""
    preprocessing: Preprocessing | None = None
    class_names: list[str] | None = None
    layout: Layout | None = None
    """Whose names the tensors have; None: ours, or a ResNet's, which are the same everywhere."""
    grid: Grid | None = None
    """The patch grid of the positions; None: to be read off their number."""
    taken: str = ""
    """Which of a file's several sets of weights these are; empty: it has one."""

    @property
    def classes(self) -> int:
        """How many the head has; 0: there is none."""
        tensors = self.tensors if self.layout is None else unwrapped(self.layout, self.tensors)
        return next((len(tensors[name]) for name in HEADS if name in tensors), 0)

    @property
    def hint(self) -> str:
        """What the user might do who gave no name."""
        if self.layout is None:
            return "its tensors are in no known layout"
        return f"it is in the layout {self.layout.name}, where the number of heads (or more) is in no tensor"


def open_source(pretrained: str) -> Source:
    """`timm:NAME`, `torchvision:NAME`, `hf:NAME`, a folder of timm's or Hugging Face's, or a file.

    ValueError, in one line, for anything else.
    """
    library, _, name = pretrained.partition(":")
    if library in HUBS and name:
        return HUBS[library](name)
    path = Path(pretrained)
    if is_timm_folder(path):
        return open_timm_folder(path)
    return open_huggingface_folder(path, pretrained) if holds_huggingface(path) else open_file(path)


def open_file(path: Path) -> Source:
    """A file of tensors, its architecture as far as they tell it. ValueError for what is not supported."""
    file = read_file(path)
    refuse_unsupported(file.tensors, str(path))
    layout = find_layout(file.tensors)
    config = None if layout is None else _told(layout, file.tensors)
    return Source(str(path), file.tensors, config, layout=layout, taken=file.taken)


def _told(layout: Layout, tensors: dict[str, Tensor]) -> ViTConfig | None:
    """The architecture; None also where a tensor that would tell it is not there, which the loader then names."""
    try:
        return layout.config(unwrapped(layout, tensors))
    except KeyError:
        return None


def is_timm_folder(path: Path) -> bool:
    """Whether a folder is one of timm's on the hub: its `config.json` has an `architecture`."""
    file = path / "config.json"
    return file.is_file() and "architecture" in json.loads(file.read_text(encoding="utf-8"))


def open_timm_folder(path: Path) -> Source:
    """A folder as timm's `save_for_hf` writes it: `config.json` names the model, the file beside it holds the weights.

    ValueError for a folder without weights and for an architecture that is not supported.
    """
    content = json.loads((path / "config.json").read_text(encoding="utf-8"))
    files = [path / name for name in TIMM_FILES if (path / name).is_file()]
    if not files:
        raise ValueError(f"model.pretrained: {str(path)!r} has neither {' nor '.join(TIMM_FILES)}")
    name, settings = content["architecture"], content.get("pretrained_cfg", {})
    options = dict(content.get("model_args", {})) | {"num_classes": content["num_classes"]}
    config = _resnet(name, content["num_classes"]) or timm_config(name, **options)
    needed = {"input_size", "crop_pct", "interpolation", "mean", "std"}
    preprocessing = timm_preprocessing(settings, str(path)) if needed <= set(settings) else None
    file, names = read_file(files[0]), content.get("label_names")
    layout = find_layout(file.tensors) if isinstance(config, ViTConfig) else None
    return Source(str(path), file.tensors, config, preprocessing, names, layout, _grid(config), file.taken)


def download_timm(name: str) -> Source:
    """Weights by timm's name. ValueError for an unknown or unsupported model, and where they cannot be fetched."""
    import timm

    check_timm_name(name)
    try:
        if not is_timm_resnet(name):
            timm_config(name)  # what is not supported is not downloaded
        model = timm.create_model(name, pretrained=True)
    except (OSError, RuntimeError) as error:
        raise unreachable(f"timm's weights {name!r}", error) from error
    config = _resnet(name, model.num_classes) or config_of(model, name)
    tensors = model.state_dict()
    layout = find_layout(tensors) if isinstance(config, ViTConfig) else None
    preprocessing = timm_preprocessing(model.pretrained_cfg, name)
    return Source(f"timm:{name}", tensors, config, preprocessing, layout=layout, grid=_grid(config))


def download_torchvision(name: str) -> Source:
    """`vit_b_16` takes torchvision's default weights, `vit_b_16.IMAGENET1K_SWAG_E2E_V1` those.

    ValueError for an unknown or unsupported model, and where the weights cannot be fetched.
    """
    from torchvision import models

    architecture, _, wanted = name.partition(".")
    known = [*RESNETS, *(each for each in models.list_models(module=models) if each.startswith("vit_"))]
    if architecture not in known:
        raise ValueError(
            f"model.pretrained: torchvision:{architecture} is not supported; {nearest(architecture, known)}"
        )
    entries = models.get_model_weights(architecture)
    choices = [entry.name for entry in entries]
    if wanted and wanted not in choices:
        raise ValueError(
            f"model.pretrained: torchvision's {architecture} has no {wanted!r}; {nearest(wanted, choices)}"
        )
    entry = entries[wanted] if wanted else entries.DEFAULT
    try:
        tensors = entry.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        raise unreachable(f"torchvision's weights {name!r}", error) from error
    names = list(entry.meta["categories"])
    layout = find_layout(tensors)
    config = _resnet(name, len(names)) if layout is None else layout.config(tensors)
    preprocessing = torchvision_preprocessing(entry.transforms())
    return Source(f"torchvision:{name}", tensors, config, preprocessing, names, layout, _grid(config))


def torchvision_preprocessing(transform: object) -> Preprocessing:
    """torchvision's `ImageClassification` in our words."""
    (crop,), (resized,) = transform.crop_size, transform.resize_size  # type: ignore[attr-defined]
    fraction = crop / resized
    if math.floor(crop / fraction) != resized:
        fraction = math.nextafter(fraction, 0)
    return Preprocessing(
        image_size=(crop, crop),
        crop_fraction=fraction,
        interpolation=transform.interpolation.value,  # type: ignore[attr-defined]
        antialias=transform.antialias is not False,  # type: ignore[attr-defined]
        mean=tuple(transform.mean),  # type: ignore[attr-defined]
        std=tuple(transform.std),  # type: ignore[attr-defined]
    )


def unreachable(what: str, error: Exception) -> ValueError:
    """The one line for weights that a hub did not give."""
    reason = " ".join(str(error).split())[:200]
    return ValueError(
        f"model.pretrained: {what} could not be fetched ({reason}); without a network, give the path of a file"
    )


def _resnet(name: str, num_classes: int) -> ResNetConfig | None:
    if not is_timm_resnet(name):
        return None
    return ResNetConfig(depth=int(name.split(".")[0].removeprefix("resnet")), num_classes=num_classes)  # type: ignore[arg-type]


def _grid(config: ViTConfig | ResNetConfig | None) -> Grid | None:
    return config.grid_size if isinstance(config, ViTConfig) else None


def open_huggingface_folder(path: Path, name: str) -> Source:
    """A folder as transformers writes it. ValueError for a `model_type` that is not supported."""
    folder = read_folder(path)
    grid = folder.config.grid_size
    return Source(name, folder.tensors, folder.config, folder.preprocessing, folder.class_names, folder.layout, grid)


HUBS: dict[str, Callable[[str], Source]] = {
    "timm": download_timm,
    "torchvision": download_torchvision,
    "hf": lambda name: open_huggingface_folder(fetch_folder(name, PREPROCESSING), f"hf:{name}"),
}
