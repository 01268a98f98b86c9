"""Hugging Face's transformers: the hub and its own models.

Downloads go through huggingface_hub and its cache, which works offline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.config import check
from vit.libraries import CANNOT_BUILD, NEVER_TRAINED, LibraryModel, Provenance, build_error
from vit.libraries.foreign_json import IndexFile, read_json
from vit.libraries.hub import check_reached
from vit.libraries.image_processors import stated_preprocessing

INDEX = "model.safetensors.index.json"
MASKED = "vit_mae"
"""The kind of model that hides patches at random, and shuffles the others, unless told otherwise."""
WITHOUT_CLASS_TOKEN = ("ijepa", "aimv2_vision_model")
"""The kinds of models whose first token is a patch."""
OF_PATCHES = "siglip2_vision_model"
"""The kind of model that is given the pixels of each patch as a row."""

WITHOUT_AUTO_MODEL = {
    "altclip_vision_model": "AltCLIPVisionModel",
    "blip_2_vision_model": "Blip2VisionModel",
    "blip_vision_model": "BlipVisionModel",
    "flava_image_model": "FlavaImageModel",
    "instructblip_vision_model": "InstructBlipVisionModel",
    "metaclip_2_vision_model": "MetaClip2VisionModel",
    "owlv2_vision_model": "Owlv2VisionModel",
    "owlvit_vision_model": "OwlViTVisionModel",
}
"""Kinds of plain image encoders that transformers has and its `AutoModel` does not know → their class."""
TOWERS = ("vision_model", "image_model")
"""Names of the image tower in models of images and text."""
_NO_FOREIGN_CODE = {"trust_remote_code": False}
"""Without it, transformers asks on the terminal whether to import a folder's own code."""

# ------------------------------------------------------------------ the hub


def fetch_folder(name: str, *others: str, weights: bool = True) -> Path:
    """The cache's folder of `name`, with its weights and those of `others` that exist.

    ValueError, in one line, for files that cannot be downloaded.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    check_reached(name)
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
    for shard in sorted(set(read_json(Path(index), IndexFile)["weight_map"].values())):
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
        inputs = self._rows(images) if self.config.model_type == OF_PATCHES else {"pixel_values": images}
        average = self.config.model_type in WITHOUT_CLASS_TOKEN
        return output_tensor(self.model(**inputs, **masked), average=average)

    def _rows(self, images: Tensor) -> dict[str, Tensor]:
        """The inputs of a model that is given patches: all of them are there, on the images' grid."""
        step = self.config.patch_size
        rows = rearrange(images, "b k (gh ph) (gw pw) -> b (gh gw) (ph pw k)", ph=step, pw=step)
        grid = torch.tensor([[side // step for side in images.shape[2:]]] * len(images))
        there = torch.ones(rows.shape[:2], dtype=torch.int, device=images.device)
        return {"pixel_values": rows, "pixel_attention_mask": there, "spatial_shapes": grid}


def saved_tensors(model: TransformersModel) -> dict[str, Tensor]:
    """The tensors under the names of its files, which in recent versions are not those of its modules."""
    from safetensors.torch import load_file

    with TemporaryDirectory() as folder:
        model.model.save_pretrained(folder)  # type: ignore[operator]
        files = sorted(Path(folder).glob("*.safetensors"))
        return {name: tensor for file in files for name, tensor in load_file(file).items()}


def _kept_in_order(model: Any, images: Tensor) -> Tensor:
    """For each patch the number by which MAE sorts what it keeps, `b n`: its place, so that no patch is moved."""
    patches = model.embeddings.patch_embeddings.num_patches
    return torch.arange(patches, device=images.device).expand(len(images), -1)


def output_tensor(output: Any, *, average: bool = False) -> Tensor:
    """Logits, image embedding, pooled features, class token or (`average`) mean of the tokens: what our model gives."""
    for name in ("logits", "image_embeds", "pooler_output"):
        found: Tensor | None = getattr(output, name, None)
        if found is not None:
            return found
    tokens: Tensor = output.last_hidden_state
    return tokens.mean(dim=1) if average else tokens[:, 0]


def class_names_of(settings: Mapping[str, Any], num_classes: int, where: object) -> list[str]:
    """Class names in a `config.json`; empty if they are the library's placeholders, `LABEL_0` and so on, and without a
    head. ValueError, naming the file `where`, for names of other classes than the head's.
    """
    by_number = sorted((int(number), str(name)) for number, name in (settings.get("id2label") or {}).items())
    key, names = "id2label", [name for _, name in by_number]
    if not names:
        key, names = "label_names", list(map(str, settings.get("label_names") or ()))
    if not names or names[0] == "LABEL_0" or not num_classes:
        return []
    numbers = [number for number, _ in by_number] or range(len(names))
    if list(numbers) != list(range(num_classes)):
        rule = f"it names {len(names)} classes, and the head has those from 0 to {num_classes - 1}"
        raise ValueError(f"model.pretrained: {where}: {key} is not valid: {rule}")
    return names


PROVENANCE = Provenance("hf")
"""Neither a name on the hub nor a folder says how its weights were trained."""


@contextmanager
def without_progress() -> Iterator[None]:
    """Load without transformers' own progress bar."""
    from transformers.utils import logging

    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            logging.enable_progress_bar()


def build(folder: Path, name: str, *, pretrained: bool, num_classes: int | None = None) -> LibraryModel:
    """transformers' own model of a folder's `config.json`, with the head of its weights.

    `num_classes`: for random weights. ValueError where transformers is missing or does not know the model.
    """
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise ValueError("model.pretrained: hf: needs the package transformers; pip install 'vit[text]'") from error

    from huggingface_hub.errors import StrictDataclassError

    try:
        config = AutoConfig.from_pretrained(folder, **_NO_FOREIGN_CODE)
        architectures = config.architectures or ["ForImageClassification"]
        classifies = any("ForImageClassification" in each for each in architectures)
        if config.model_type == MASKED:
            config.mask_ratio = 0.0
        if not pretrained and num_classes is not None:
            config.num_labels = num_classes
        kind = _class_of(config, classifies=classifies)
        with without_progress():
            model = (_loaded(kind, folder, config) if pretrained else _built(kind, config)).float()
    except (*CANNOT_BUILD, StrictDataclassError) as error:
        raise build_error("transformers", name, error) from error
    names = class_names_of(config.to_dict(), config.num_labels, folder) if pretrained and classifies else []
    provenance = PROVENANCE if pretrained else NEVER_TRAINED
    towers = (getattr(model, name, None) for name in TOWERS)
    vision = next((tower for tower in towers if isinstance(tower, nn.Module)), model)
    tower = vision if not classifies and hasattr(model, "text_model") else model
    preprocessing, unsupported = stated_preprocessing(folder)
    return LibraryModel(
        model=TransformersModel(tower),
        preprocessing=preprocessing,
        unsupported_preprocessing=unsupported,
        class_names=names,
        num_classes=config.num_labels if classifies else 0,
        provenance=provenance,
        library="transformers",
    )


def _loaded(kind: Any, folder: Path, config: Any) -> Any:
    """The model with its weights. ValueError for weights that are missing, which transformers draws at random.

    A pooling layer that is missing is left out; a mask token is of training alone.
    """
    model, found = kind.from_pretrained(folder, config=config, output_loading_info=True, **_NO_FOREIGN_CODE)
    missing = sorted(name for name in found["missing_keys"] if "mask_token" not in name)
    if others := [name for name in missing if not name.startswith("pooler.")]:
        raise ValueError(f"its weights lack {', '.join(others[:3])}")
    if missing:
        model.pooler = None
    return model


def _class_of(config: Any, *, classifies: bool) -> Any:
    """The class that computes a model of that configuration. ValueError where there is none for it alone."""
    import transformers

    own = WITHOUT_AUTO_MODEL.get(config.model_type)
    stated = next(iter(config.architectures or ()), "")
    if stated.endswith("VisionModelWithProjection"):  # whose projection `AutoModel` leaves out
        own = stated
    if own is not None:
        return getattr(transformers, own)
    if classifies:
        return transformers.AutoModelForImageClassification
    if type(config) not in transformers.MODEL_MAPPING:
        raise ValueError(f"its AutoModel has no model for model_type {config.model_type!r}")
    return transformers.AutoModel


def _built(kind: Any, config: Any) -> Any:
    """The model with random weights; only the automatic classes have `from_config`."""
    return kind.from_config(config, **_NO_FOREIGN_CODE) if hasattr(kind, "from_config") else kind(config)


def set_image_size(model: nn.Module, size: tuple[int, int], name: str) -> None:
    """ValueError for another size than the configuration's: it cannot be changed."""
    own = getattr(getattr(model, "config", None), "image_size", None)
    pair = (own, own) if isinstance(own, int) else None if own is None else tuple(own)
    check(pair in (None, size), "image_size", size, f"transformers' {name} takes images of {pair} pixels only")
