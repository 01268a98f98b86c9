"""Reading and writing a folder in the format of Hugging Face's `save_pretrained`: `config.json` and the weights.

`config.json` determines the architecture, the tensors' names the layout. Other models than `FAMILIES` are refused.
transformers itself is needed only to compare with its own models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from vit.config import Preprocessing, ViTConfig
from vit.libraries import NoCounterpart, UnsupportedArchitecture
from vit.libraries.foreign_json import HuggingFaceFile, IndexFile, check_schema, read_json
from vit.libraries.image_processors import PREPROCESSING, processor_of, stated_preprocessing
from vit.libraries.transformers import TransformersModel, class_names_of, output_tensor, without_progress
from vit.runs import write_safetensors
from vit.weights import aimv2, hf_beit, hf_clip, hf_dinov2, hf_dinov3, hf_vit
from vit.weights.extent import check_extent
from vit.weights.files import read_tensors
from vit.weights.hf_family import Family
from vit.weights.layout import Forward, Layout, Tensors, invert_rules

FAMILIES = (
    hf_clip.CLIP,
    hf_clip.SIGLIP,
    hf_clip.SIGLIP2,
    aimv2.AIMV2,
    hf_vit.DEIT,
    hf_dinov2.DINOV2,
    hf_dinov2.DINOV2_REGISTERS,
    hf_dinov3.DINOV3,
    hf_vit.VIT,
    hf_vit.MAE,
    hf_vit.MSN,
    hf_vit.IJEPA,
    hf_beit.BEIT,
    hf_beit.DATA2VEC,
)
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
"""File names of weights, in the order of the search."""
_BASE = {
    "deit": "deit.",
    "vit": "vit.",
    "ijepa": "ijepa.",
    "dinov2": "dinov2.",
    "dinov2_with_registers": "dinov2_with_registers.",
    "dinov3_vit": "",
    "aimv2_vision_model": "",
    "beit": "beit.",
}
"""Prefix of the encoder inside a classifier; of models that are never inside one, none."""
_WRITTEN = {
    "clip_vision_model": "hf-clip",
    "siglip_vision_model": "hf-siglip",
    "siglip2_vision_model": "hf-siglip2",
    "aimv2_vision_model": "hf-aimv2",
    "dinov2": "hf-dinov2",
    "dinov2_with_registers": "hf-dinov2",
    "dinov3_vit": "hf-dinov3",
    "beit": "hf-beit",
}
"""The layout of a family, without its prefix; of all others hf-vit."""
_MASK_TOKENS = {"dinov2": (1,), "dinov2_with_registers": (1,), "dinov3_vit": (1, 1)}
"""Shape, before the width, of the mask token that a family's files always have, and nothing here uses."""


@dataclass(frozen=True)
class Folder:
    """The content of a folder."""

    config: ViTConfig
    layout: Layout
    tensors: dict[str, Tensor]
    """Under the library's names."""
    preprocessing: Preprocessing | None
    unsupported_preprocessing: str
    """Why there is none though the folder states one; empty otherwise."""
    class_names: list[str] | None


def is_huggingface_folder(path: Path) -> bool:
    return (path / "config.json").is_file()


def holds_weights(folder: Path) -> bool:
    """Whether weights are beside `config.json`, in this format or timm's."""
    return is_huggingface_folder(folder) and any((folder / name).is_file() for name in WEIGHTS)


def read_folder(folder: Path) -> Folder:
    """Read a folder. ValueError, in one line, for an unsupported `model_type` or configuration, and for unknown names
    of tensors."""
    content = read_json(folder / "config.json")
    family_of(content, str(folder / "config.json"))  # before the weights are read
    named = f"model.pretrained: {folder / 'config.json'}"
    check_schema(content, HuggingFaceFile, named)
    check_schema(content.get("vision_config") or {}, HuggingFaceFile, f"{named}: vision_config")
    tensors = read_folder_tensors(folder)
    config, layout = read_config(content, tensors, str(folder / "config.json"))
    names = class_names_of(content, config.num_classes, folder / "config.json")
    return Folder(config, layout, tensors, *stated_preprocessing(folder), names or None)


def read_config(content: Mapping[str, Any], tensors: Tensors, source: str) -> tuple[ViTConfig, Layout]:
    """The architecture of a `config.json`, and its tensors' layout. UnsupportedArchitecture for others."""
    family = family_of(content, source)
    try:
        config = family.read(content, tensors, source)
    except ValueError as error:
        raise UnsupportedArchitecture(str(error)) from error
    except (TypeError, IndexError) as error:
        rule = f"its head does not have the shape of one of {family.model_type}"
        raise ValueError(f"model.pretrained: {source}: the weights beside it are damaged: {rule}") from error
    layout = next((layout for layout in LAYOUTS if layout.recognizes(tensors)), None)
    if layout is None:
        shown = ", ".join(sorted(tensors)[:3])
        raise ValueError(
            f"model.pretrained: {source}: tensors such as {shown} do not have the names of {family.model_type}"
        )
    check_extent(config, tensors, source)
    return config, layout


def family_of(content: Mapping[str, Any], source: str) -> Family:
    """Find the family of a `config.json`. ValueError, with the list of the supported ones, for others."""
    found = content.get("model_type")
    if not isinstance(found, str):
        raise ValueError(f"model.pretrained: {source}: model_type: {found!r} is not valid: it must be a model's name")
    by_type = {name: family for family in FAMILIES for name in (family.model_type, *family.nested_types)}
    if found not in by_type:
        supported = ", ".join(sorted(by_type))
        rule = f"model_type {found!r} is not supported; supported are {supported}"
        raise UnsupportedArchitecture(f"model.pretrained: {source}: {rule}")
    return by_type[found]


def read_folder_tensors(folder: Path) -> dict[str, Tensor]:
    """Read the weights of a folder from all shards. ValueError if there are none."""
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(f"model.pretrained: {str(folder)!r} has none of {', '.join(WEIGHTS)}")
    if path.suffix != ".json":
        return read_tensors(path)
    shards = sorted(set(read_json(path, IndexFile)["weight_map"].values()))
    return {name: tensor for shard in shards for name, tensor in read_tensors(folder / shard).items()}


# ------------------------------------------------------------------ writing


_ODD = "where an odd number of pixels is cut off, transformers' crop can begin a pixel further up or left than ours"


@dataclass(frozen=True)
class HowUsed:
    """The preprocessing, class names and kind of output that a model's folder states beside its weights."""

    preprocessing: Preprocessing | None = None
    class_names: Sequence[str] = ()
    multilabel: bool = False

    def processor(self) -> tuple[dict[str, Any] | None, str]:
        """The content of `preprocessor_config.json`, and a note where it is missing or not exactly ours."""
        if self.preprocessing is None:
            return None, f"{PREPROCESSING} is not written: the source does not say how its images are prepared"
        try:
            content = processor_of(self.preprocessing)
        except ValueError as error:
            return None, f"{PREPROCESSING} is not written: {error}"
        even = self.preprocessing.crop_rounding == "even" and "crop_size" in content
        return content, _ODD if even else ""


def family_for(config: ViTConfig) -> Family:
    """Find the family with this architecture. NoCounterpart naming the field that the nearest one does not support."""
    reasons = {family.model_type: family.unsupported_reason(config) for family in FAMILIES}
    supporting = next((family for family in FAMILIES if reasons[family.model_type] is None), None)
    if supporting is not None:
        return supporting
    nearest = "vit" if config.layer_scale is None else "dinov2"
    for model_type, is_similar in (
        ("clip_vision_model", config.pre_norm),
        ("siglip_vision_model", config.pooling == "map"),
        ("aimv2_vision_model", config.embedding_norm),
        ("deit", config.distillation_token),
        ("ijepa", not config.class_token and config.pooling == "gap"),
        ("dinov3_vit", config.rope_coordinates == "centred"),
        ("dinov2_with_registers", config.num_registers > 0),
        ("beit", config.positions == "relative"),
    ):
        if is_similar:
            nearest = model_type
            break
    raise NoCounterpart(f"--to: Hugging Face has no such model; for its {nearest}, {reasons[nearest]}")


def to_huggingface(config: ViTConfig, tensors: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """`config.json` and the tensors under the library's names. ValueError where it has no such model."""
    family = family_for(config)
    layout = _layout_to_write(family, config)
    theirs = invert_rules(layout, tensors, config)
    assert not theirs.unexpected, f"{layout.name} has no names for {theirs.unexpected}"
    return family.write(config), theirs.tensors | _unused(family, config)


def write_folder(folder: Path, config: ViTConfig, tensors: Tensors, use: HowUsed | None = None) -> None:
    """Write a folder that transformers' `from_pretrained` and, with all of `use`, its `pipeline` reads.

    ValueError if it has no such model. Of two classes with one name, as ImageNet's cranes, `label2id` has the last.
    """
    content, theirs = to_huggingface(config, tensors)
    use = use or HowUsed()
    if "num_labels" in content:
        if len(use.class_names) == content["num_labels"]:
            content["id2label"] = dict(enumerate(use.class_names))
            content["label2id"] = {name: number for number, name in enumerate(use.class_names)}
        if use.multilabel:
            content["problem_type"] = "multi_label_classification"
    try:
        _write(folder, content, theirs)
        processor, _ = use.processor()
        if processor is not None:
            (folder / PREPROCESSING).write_text(json.dumps(processor, indent=2) + "\n", encoding="utf-8")
    except BaseException:
        for name in ("config.json", "model.safetensors", PREPROCESSING):  # or the next try would find files
            (folder / name).unlink(missing_ok=True)
        raise


def _write(folder: Path, content: Mapping[str, Any], tensors: Tensors) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})


def _layout_to_write(family: Family, config: ViTConfig) -> Layout:
    """The layout with the prefix of the class that reads the file; image towers always have a prefix."""
    prefix = _BASE.get(family.model_type, "vision_model.")
    if family.model_type in _BASE and config.num_classes == 0:
        prefix = ""
    kind = _WRITTEN.get(family.model_type, "hf-vit")
    return next(layout for layout in LAYOUTS if layout.name == (f"{kind} ({prefix}…)" if prefix else kind))


def _unused(family: Family, config: ViTConfig) -> dict[str, Tensor]:
    """The tensors that a family always has: the mask token, initialized, and registers though there are none."""
    if family.model_type not in _MASK_TOKENS:
        return {}
    prefix = "" if config.num_classes == 0 else _BASE[family.model_type]
    unused = {f"{prefix}embeddings.mask_token": torch.zeros(*_MASK_TOKENS[family.model_type], config.width)}
    if "num_register_tokens" in family.keys and config.num_registers == 0:
        unused[f"{prefix}embeddings.register_tokens"] = torch.zeros(1, 0, config.width)
    return unused


# ------------------------------------------------------------------ the library's own model


def huggingface_forward(config: ViTConfig, tensors: Tensors) -> Forward:
    """Build transformers' own model: images to logits, projection or pooled features; errors as `build_huggingface`."""
    model = build_huggingface(config, tensors)
    if "spatial_shapes" in signature(model.forward).parameters:
        return TransformersModel(model)
    return lambda images: output_tensor(model(pixel_values=images), average=not config.class_token)


def build_huggingface(config: ViTConfig, tensors: Tensors) -> nn.Module:
    """Build transformers' own model with these tensors, in evaluation mode, from a temporary folder.

    ValueError where it has no such model, and for missing and unexpected tensors.
    """
    import transformers

    family = family_for(config)
    content = family.write(config)
    library_class = getattr(transformers, content["architectures"][0])
    unpooled = {"vit": config.representation_width is None, "deit": config.representation_width is None}
    bare = config.num_classes == 0 and (unpooled.get(family.model_type) or config.final_norm == "none")
    options = {"add_pooling_layer": False} if bare else {}
    with TemporaryDirectory() as folder:
        _write(Path(folder), content, _unused(family, config) | dict(tensors))
        with without_progress():
            model, info = library_class.from_pretrained(folder, output_loading_info=True, **options)
    if info["missing_keys"] or info["unexpected_keys"]:
        missing, unexpected = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
        raise ValueError(f"--verify: transformers misses {missing} and does not know {unexpected}")
    built: nn.Module = model.eval()
    return built


LAYOUTS = tuple(
    replace(layout, reference=huggingface_forward)
    for layout in (
        *hf_beit.LAYOUTS,
        *hf_dinov2.LAYOUTS,
        *hf_dinov3.LAYOUTS,
        *hf_vit.LAYOUTS,
        *hf_clip.LAYOUTS,
        *aimv2.LAYOUTS,
    )
)
