"""timm (Wightman, github.com/huggingface/pytorch-image-models): names, preprocessing, tags, its models."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import Tensor

from vit.config import Interpolation, Preprocessing, ResNetConfig, ViTConfig, check, nearest
from vit.config.rules import shown
from vit.libraries import (
    CANNOT_BUILD,
    NEVER_TRAINED,
    NOT_STATED,
    LibraryModel,
    Provenance,
    build_error,
    download_error,
)
from vit.libraries.hub import check_reached
from vit.libraries.timm_reading import architecture_of

FAMILIES = (
    *("vit_", "deit_", "deit3_", "flexivit_", "eva_", "eva02_"),
    *("aimv2_", "naflexvit_", "beit_", "beitv2_"),
)


def check_name(name: str) -> None:
    """ValueError for a name that timm does not have, and for weights that its model of that name does not have."""
    import timm

    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise ValueError(f"model.pretrained: timm has no model {shown(name)}; {_names_like(name, timm.list_models())}")
    try:
        timm.models.get_pretrained_cfg(name)
    except RuntimeError as error:
        tags = [each.partition(".")[2] for each in timm.models.get_arch_pretrained_cfgs(architecture)]
        rule = f"timm's {architecture} has no weights {shown(tag)}; {nearest(tag, tags)}"
        raise ValueError(f"model.pretrained: {rule}") from error


def _names_like(name: str, names: list[str]) -> str:
    """Names that begin so; else the one that is almost that, or a few, with its first word if there are any."""
    longer = sorted((each for each in names if each.startswith(name)), key=len)
    if name and longer:
        return f"there are {', '.join(longer[:5])}"
    family = name.partition("_")[0] + "_"
    kin = [each for each in names if each.startswith(family)] or names
    few = difflib.get_close_matches(name[:60].lower(), kin, n=5, cutoff=0)
    is_close = difflib.get_close_matches(name[:60].lower(), few)
    return nearest(name, few) if is_close else f"the nearest are {', '.join(few)}"


def is_vit(name: str) -> bool:
    """True if timm has a Vision Transformer of that name, which is an architecture's: without that of weights."""
    import timm

    return name.startswith(FAMILIES) and "." not in name and timm.is_model(name)


def names_weights(name: str) -> bool:
    """True for the name of weights, `ARCHITECTURE.TAG`, of an architecture that timm has."""
    if "." not in name:  # timm's import takes seconds
        return False
    import timm

    return bool(timm.is_model(name.partition(".")[0]))


def config_by_name(name: str, /, **options: Any) -> ViTConfig | ResNetConfig:
    """The architecture of timm's model of that name, without its weights; `options` are timm's.

    ValueError for a name that timm does not have, UnsupportedArchitecture naming an unsupported part.
    """
    import timm

    check_name(name)
    with torch.device("meta"):
        try:
            model = timm.create_model(name, **options)
        except CANNOT_BUILD as error:
            if not options:
                raise
            raise _not_built(name, options, error) from error
    return architecture_of(model, name)


def _not_built(name: str, options: Mapping[str, Any], error: Exception) -> ValueError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return ValueError(f"model.pretrained: timm builds no {name!r} with {dict(options)}: {reason}")


def stated_preprocessing(settings: Mapping[str, Any], name: str) -> tuple[Preprocessing | None, str]:
    """Convert timm's `pretrained_cfg`; where it has no counterpart, None and the reason, which is otherwise empty."""
    mode, interpolation = settings.get("crop_mode") or "center", settings["interpolation"]
    if mode not in ("center", "squash") or interpolation not in get_args(Interpolation):
        return None, f"{name} crops its images by {mode}, {interpolation}, which is not supported"
    stated = Preprocessing(
        image_size=tuple(settings["input_size"][1:]),
        crop_fraction=settings["crop_pct"],
        squash=mode == "squash",
        interpolation=interpolation,
        mean=tuple(settings["mean"]),
        std=tuple(settings["std"]),
    )
    return stated, ""


def build(source: str, *, pretrained: bool, num_classes: int | None = None) -> LibraryModel:
    """timm's own model of a name. `num_classes`: None, the model's own.

    ValueError for an unknown name and for weights that cannot be downloaded.
    """
    import timm
    from timm.data import resolve_model_data_config

    check_name(source)
    options = {} if num_classes is None else {"num_classes": num_classes}
    weights = timm.models.get_pretrained_cfg(source) if pretrained else None
    if weights is not None and weights.hf_hub_id:
        check_reached(weights.hf_hub_id)
    try:
        model = timm.create_model(source, pretrained=pretrained, **options)
    except CANNOT_BUILD as error:
        raise download_error(f"timm's weights {source!r}", error) from error
    settings = model.pretrained_cfg
    preprocessing, unsupported = stated_preprocessing(resolve_model_data_config(model), source)
    architecture, tag = settings.get("architecture") or source.split(".")[0], settings.get("tag") or ""
    provenance = provenance_of_tag(architecture, tag) if pretrained else NEVER_TRAINED
    names = list(settings.get("label_names") or ()) if pretrained else []
    return LibraryModel(model, preprocessing, names, model.num_classes, provenance, "timm", unsupported)


def build_with(architecture: str, tensors: Mapping[str, Tensor] | None, name: str, /, **options: Any) -> Any:
    """timm's own model with tensors that timm's reader of the architecture takes; None: random ones.

    ValueError, which names the folder `name`, for an unknown architecture and for tensors that are not its own.
    """
    import timm

    check_name(architecture)
    if tensors is not None:
        given = {"state_dict": dict(tensors), "num_classes": options["num_classes"], "custom_load": False}
        options = options | {"pretrained_cfg_overlay": given}
    try:
        return timm.create_model(architecture, pretrained=tensors is not None, **options)
    except CANNOT_BUILD as error:
        raise build_error("timm", name, error) from error


def set_image_size(model: Any, size: tuple[int, int], name: str) -> None:
    """Set timm's model to images of that size. ValueError where its size is fixed, and where its patches do not divide
    it: timm would leave the rest out.
    """
    embedding = getattr(model, "patch_embed", None)
    patch, step = getattr(embedding, "patch_size", None), getattr(getattr(embedding, "proj", None), "stride", None)
    if patch is not None and patch == step and not getattr(embedding, "dynamic_img_pad", False):
        divided = not any(side % step for side, step in zip(size, patch, strict=True))
        check(divided, "image_size", size, f"the patches of {name}, {patch}, must divide it")
    if hasattr(model, "set_input_size"):
        model.set_input_size(img_size=size)
        return
    own = getattr(getattr(model, "patch_embed", None), "img_size", None)
    check(own in (None, size), "image_size", size, f"timm's {name} takes images of {own} pixels only")


DATA = {
    "in1k": "ImageNet-1k",
    "in12k": "ImageNet-12k",
    "in21k": "ImageNet-21k",
    "in22k": "ImageNet-22k",
    "ig1b": "Instagram (1 B)",
    "yfcc100m": "YFCC-100M",
    "yfcc15m": "YFCC-15M",
    "cc12m": "CC-12M",
    "webli": "WebLI",
    "lvd142m": "LVD-142M",
    "lvd1689m": "LVD-1689M",
    "sat493m": "SAT-493M",
    "laion400m": "LAION-400M",
    "laion2b": "LAION-2B",
    "datacompxl": "DataComp-XL",
    "datacomp1b": "DataComp-1B",
    "dfn2b": "DFN-2B",
    "dfn5b": "DFN-5B",
    "merged2b": "Merged-2B",
    "openai": "OpenAI's CLIP set (400 M)",
}
"""Word of a tag → data set, by the convention of timm's model cards."""
_DISTILLED = ("dist", "distilled", "teacher")


def provenance_of_tag(architecture: str, tag: str) -> Provenance:
    """Parse a tag of timm's (`augreg_in21k_ft_in1k`: recipe, pre-training data, fine-tuning data)."""
    words = tag.split("_")
    data = tuple(DATA[word] for word in words if word in DATA) or (NOT_STATED,)
    recipe = "_".join(word for word in words if word not in (*DATA, "ft", *_DISTILLED)) or NOT_STATED
    is_distilled = "distilled" in architecture or any(word in _DISTILLED for word in words)
    return Provenance("timm", data, recipe, "from a teacher" if is_distilled else NOT_STATED)
