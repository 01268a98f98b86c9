"""A folder as Hugging Face's `save_pretrained` writes it, read and written: `config.json` and the weights.

`config.json` decides the architecture; the tensors' names decide the layout. What is not one of `FAMILIES` is refused
by name. transformers itself is needed only to compare with its own models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vit.config import Preprocessing, ViTConfig
from vit.weights import hf_clip, hf_dinov2, hf_vit
from vit.weights.files import read_tensors
from vit.weights.hf_family import Family
from vit.weights.hf_preprocessing import read_preprocessing
from vit.weights.layout import Forward, Layout, Tensors, invert

FAMILIES = (
    hf_clip.CLIP,
    hf_clip.SIGLIP,
    hf_vit.DEIT,
    hf_dinov2.DINOV2,
    hf_dinov2.DINOV2_REGISTERS,
    hf_vit.VIT,
    hf_vit.MAE,
)
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
"""Where the weights are, in the order in which they are looked for."""
_BASE = {"deit": "deit.", "vit": "vit.", "dinov2": "dinov2.", "dinov2_with_registers": "dinov2_with_registers."}
"""Prefix of the encoder inside a classifier."""


@dataclass(frozen=True)
class Folder:
    """What a folder holds."""

    config: ViTConfig
    layout: Layout
    tensors: dict[str, Tensor]
    """Under the library's names."""
    preprocessing: Preprocessing | None
    class_names: list[str] | None


def holds_huggingface(path: Path) -> bool:
    return (path / "config.json").is_file()


def read_folder(folder: Path) -> Folder:
    """ValueError, in one line, for another `model_type`, for what its configuration says and we do not compute, and for
    names of tensors that are not the library's."""
    content = read_json(folder / "config.json")
    family = family_of(content, str(folder / "config.json"))
    tensors = read_folder_tensors(folder)
    return Folder(
        config=family.read(content, tensors, str(folder / "config.json")),
        layout=_layout_of(tensors, family, str(folder)),
        tensors=tensors,
        preprocessing=read_preprocessing(folder),
        class_names=_class_names(content),
    )


def read_json(path: Path) -> dict[str, Any]:
    """A file's JSON object. ValueError naming the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"model.pretrained: there is no file {str(path)!r}") from error
    except ValueError as error:
        raise ValueError(f"model.pretrained: {path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"model.pretrained: {path} does not hold a JSON object")
    return content


def family_of(content: Mapping[str, Any], source: str) -> Family:
    """The family of a `config.json`. ValueError with the list of those that are supported."""
    found = content.get("model_type")
    by_type = {name: family for family in FAMILIES for name in (family.model_type, *family.nested_types)}
    if found not in by_type:
        supported = ", ".join(sorted(by_type))
        rule = f"model_type {found!r} is not supported; supported are {supported}"
        raise ValueError(f"model.pretrained: {source}: {rule}")
    return by_type[found]


def read_folder_tensors(folder: Path) -> dict[str, Tensor]:
    """The weights of a folder, of all its shards. ValueError where there are none."""
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(f"model.pretrained: {str(folder)!r} has none of {', '.join(WEIGHTS)}")
    if path.suffix != ".json":
        return read_tensors(path)
    shards = sorted(set(read_json(path)["weight_map"].values()))
    return {name: tensor for shard in shards for name, tensor in read_tensors(folder / shard).items()}


def _layout_of(tensors: Tensors, family: Family, source: str) -> Layout:
    layout = next((layout for layout in LAYOUTS if layout.recognizes(tensors)), None)
    if layout is None:
        shown = ", ".join(sorted(tensors)[:3])
        raise ValueError(f"model.pretrained: {source}: tensors as {shown} are not named as {family.model_type}'s are")
    return layout


def _class_names(content: Mapping[str, Any]) -> list[str] | None:
    """Names that somebody gave; the library's own `LABEL_0` say nothing."""
    names = [name for _, name in sorted(content.get("id2label", {}).items(), key=lambda item: int(item[0]))]
    return None if not names or names[0] == "LABEL_0" else names


# ------------------------------------------------------------------ writing


def expressing_family(config: ViTConfig) -> Family:
    """The family that has this architecture. ValueError naming the field that the nearest one does not have."""
    objections = {}
    for family in FAMILIES:
        objection = family.objection(config)
        if objection is None:
            return family
        objections[family.model_type] = objection
    nearest = _nearest(config)
    raise ValueError(f"--to: Hugging Face has no such model; for its {nearest}, {objections[nearest]}")


def _nearest(config: ViTConfig) -> str:
    """The family that a configuration is most like."""
    if config.pre_norm:
        return "clip_vision_model"
    if config.pooling == "map":
        return "siglip_vision_model"
    if config.distillation_token:
        return "deit"
    if config.num_registers:
        return "dinov2_with_registers"
    return "vit" if config.layer_scale is None else "dinov2"


def to_huggingface(config: ViTConfig, tensors: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """`config.json` and the tensors under the library's names. ValueError where it has no such model."""
    family = expressing_family(config)
    layout = _written_layout(family, config)
    theirs = invert(layout, tensors, config)
    assert not theirs.left_over, f"{layout.name} has no names for {theirs.left_over}"
    return family.write(config), theirs.tensors | _unused(family, config)


def write_folder(folder: Path, config: ViTConfig, tensors: Tensors) -> None:
    """A folder that transformers' `from_pretrained` reads. ValueError where it has no such model."""
    content, theirs = to_huggingface(config, tensors)
    _write(folder, content, theirs)


def _write(folder: Path, content: Mapping[str, Any], tensors: Tensors) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})


def _written_layout(family: Family, config: ViTConfig) -> Layout:
    """The prefix is the class's that reads the file; image towers have theirs always, as on the hub."""
    prefix = _BASE.get(family.model_type, "vision_model.")
    if family.model_type in _BASE and config.num_classes == 0:
        prefix = ""
    kind = {"clip_vision_model": "hf-clip", "siglip_vision_model": "hf-siglip"}.get(family.model_type, "hf-vit")
    kind = "hf-dinov2" if family.model_type.startswith("dinov2") else kind
    return next(layout for layout in LAYOUTS if layout.name == (f"{kind} ({prefix}…)" if prefix else kind))


def _unused(family: Family, config: ViTConfig) -> dict[str, Tensor]:
    """DINOv2's token of masked patches, which its files always have, at its first value: nothing reads it here."""
    if not family.model_type.startswith("dinov2"):
        return {}
    prefix = "" if config.num_classes == 0 else _BASE[family.model_type]
    return {f"{prefix}embeddings.mask_token": torch.zeros(1, config.width)}


# ------------------------------------------------------------------ the library's own model


def huggingface_forward(config: ViTConfig, tensors: Tensors) -> Forward:
    """Images to logits, projection or pooled features by transformers' own model; errors as `build_huggingface`."""
    model = build_huggingface(config, tensors)
    return lambda images: answer(model(pixel_values=images))


def build_huggingface(config: ViTConfig, tensors: Tensors) -> nn.Module:
    """transformers' own model with these tensors, in evaluation mode, built from a folder written for it.

    ValueError where it has no such model and where it does not find its tensors.
    """
    import transformers

    family = expressing_family(config)
    content = family.write(config)
    library_class = getattr(transformers, content["architectures"][0])
    bare = family.model_type in ("vit", "deit") and config.num_classes == 0 and config.representation_width is None
    options = {"add_pooling_layer": False} if bare else {}
    with TemporaryDirectory() as folder:
        _write(Path(folder), content, _unused(family, config) | dict(tensors))
        model, said = library_class.from_pretrained(folder, output_loading_info=True, **options)
    if said["missing_keys"] or said["unexpected_keys"]:
        unfilled, unknown = sorted(said["missing_keys"]), sorted(said["unexpected_keys"])
        raise ValueError(f"--verify: transformers misses {unfilled} and does not know {unknown}")
    found: nn.Module = model.eval()
    return found


def answer(output: Any) -> Tensor:
    """What our model's `forward` gives."""
    for name in ("logits", "image_embeds", "pooler_output"):
        found: Tensor | None = getattr(output, name, None)
        if found is not None:
            return found
    first: Tensor = output.last_hidden_state[:, 0]
    return first


LAYOUTS = tuple(
    replace(layout, peer=huggingface_forward) for layout in (*hf_dinov2.LAYOUTS, *hf_vit.LAYOUTS, *hf_clip.LAYOUTS)
)
