"""Writing a folder in timm's format, which timm opens by itself and `open_model` with all that we know."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from torch import nn

from vit.config import check
from vit.libraries import Provenance
from vit.libraries.timm_writing import arguments_by_name, settings_of
from vit.models import VisionTransformer, config_to_dict
from vit.runs import write_json, write_safetensors
from vit.weights.convert import convert_model
from vit.weights.huggingface import HowUsed
from vit.weights.timm_folder import FILES, OURS


def write_timm_folder(folder: Path, model: nn.Module, use: HowUsed, provenance: Provenance) -> None:
    """Write `config.json` and `model.safetensors`, which `timm.create_model("local-dir:FOLDER")` opens.

    NoCounterpart for an architecture or a preprocessing that timm has no words for, before anything is written.
    """
    is_vit = isinstance(model, VisionTransformer)
    check(is_vit, "model", type(model).__name__, "only Vision Transformers are written for timm")
    config = cast(VisionTransformer, model).config
    architecture, arguments = arguments_by_name(config)
    tensors = convert_model(model, "timm").tensors
    settings: dict[str, Any] = {"num_classes": config.num_classes, "fixed_input_size": True}
    if use.preprocessing is not None:
        settings |= settings_of(use.preprocessing)
    content: dict[str, Any] = {
        "architecture": architecture,
        "num_classes": config.num_classes,
        "num_features": config.width,
        "global_pool": arguments["global_pool"],
        "model_args": {name: value for name, value in arguments.items() if name not in ("num_classes", "in_chans")},
        "pretrained_cfg": settings,
        OURS: {"model": config_to_dict(config), "provenance": asdict(provenance)},
    }
    if use.class_names:
        content["label_names"] = list(use.class_names)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", content)
    write_safetensors(folder / FILES[0], tensors, {"format": "pt"})
