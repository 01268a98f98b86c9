"""timm (Wightman, github.com/huggingface/pytorch-image-models): names, architectures, preprocessing, tags, its models.

Architectures that our Vision Transformer does not compute are refused, naming the part.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import Tensor, nn

from vit.config import Interpolation, Preprocessing, ResNetConfig, ViTConfig, check, nearest
from vit.config.rules import shown
from vit.libraries import (
    CANNOT_BUILD,
    NEVER_TRAINED,
    NOT_STATED,
    LibraryModel,
    Provenance,
    UnsupportedArchitecture,
    build_error,
    download_error,
    resnets,
    timm_beit,
    timm_eva,
    timm_naflex,
)
from vit.libraries.hub import check_reached
from vit.libraries.timm_writing import ACTIVATIONS, POOLINGS

UNSUPPORTED = {
    "VisionTransformerRelPos": "relative position biases that a small network computes",
    "VisionTransformerSAM": "windows with relative positions",
    "SwinTransformer": "windows with relative position biases",
    "SwinTransformerV2": "windows with relative position biases",
    "HybridEmbed": "a hybrid's convolutional stem",
    "ParallelScalingBlock": "attention and feed-forward in parallel",
    "DiffParallelScalingBlock": "differential attention",
    "DiffAttention": "differential attention",
    "ParallelThingsBlock": "several branches in parallel in one block",
    "ResPostBlock": "norms after the branches",
}
"""Class of a model or of a part of one → its unsupported feature."""
FAMILIES = (
    *("vit_", "deit_", "deit3_", "flexivit_", "eva_", "eva02_"),
    *("aimv2_", "naflexvit_", "beit_", "beitv2_"),
)
OF_THEIR_OWN = {"Eva": timm_eva, "Beit": timm_beit}
"""Class of a model whose blocks are not those of timm's other Vision Transformers → the module that knows it."""
PLAIN = ("VisionTransformer", "VisionTransformerDistilled")
FINDERS = {"NaFlexVit": timm_naflex.unsupported_part} | {
    kind: module.unsupported_part for kind, module in OF_THEIR_OWN.items()
}
"""Class of a model → what names the first part of it that is not supported."""
NORMS = {"LayerNorm": "layer", "RmsNorm": "rms"}


def check_name(name: str) -> None:
    """ValueError for a name that timm does not have."""
    import timm

    if timm.is_model(name.split(".")[0]):
        return
    raise ValueError(f"model.pretrained: timm has no model {shown(name)}; {_names_like(name, timm.list_models())}")


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
    """True if timm has a Vision Transformer of that name."""
    import timm

    return name.startswith(FAMILIES) and timm.is_model(name.split(".")[0])


def config_by_name(name: str, **options: Any) -> ViTConfig | ResNetConfig:
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


def architecture_of(model: Any, name: str) -> ViTConfig | ResNetConfig:
    """The architecture of a timm model. UnsupportedArchitecture naming an unsupported part."""
    is_resnet = type(model).__name__ in ("ResNet", "ResNetV2")
    return resnets.config_of_timm(model, name) if is_resnet else config_of(model, name)


def config_of(model: Any, name: str) -> ViTConfig:
    """The architecture of a timm Vision Transformer. UnsupportedArchitecture naming an unsupported part."""
    kind = type(model).__name__
    _check_kind(model, kind, name)
    own: dict[str, Any] = {}
    if kind == "NaFlexVit":
        own["position_resize"] = timm_naflex.position_resize(model)
        model = timm_naflex.plain_view(model)
    block = model.blocks[0]
    for part in (model.patch_embed, block, block.attn if hasattr(block, "attn") else None):
        _refuse(type(part).__name__, name)
    _check_parts(model, block, name)
    learned = model.pos_embed is not None
    if kind in OF_THEIR_OWN:
        own = OF_THEIR_OWN[kind].own_options(model)
    else:
        own |= {
            "qkv_bias": block.attn.qkv.bias is not None,
            "layer_scale": getattr(block.ls1, "init_values", None),
            "proj_bias": block.attn.proj.bias is not None,
        }
    absent, registers = nn.Identity(), getattr(model, "reg_token", None)  # a `Beit` lacks what it never has
    on_prefix = not getattr(model, "no_embed_class", False)
    final_norm: Any = "none" if isinstance(model.norm, nn.Identity) else "tokens"
    common: dict[str, Any] = {
        "image_size": tuple(model.patch_embed.img_size),
        "patch_size": tuple(model.patch_embed.patch_size),
        "num_classes": model.num_classes,
        "width": model.embed_dim,
        "depth": len(model.blocks),
        "num_heads": block.attn.num_heads,
        "pooling": POOLINGS[model.global_pool],
        "class_token": model.cls_token is not None,
        "distillation_token": kind == "VisionTransformerDistilled",
        "num_registers": 0 if registers is None else registers.shape[1],
        "positions": "learned_1d" if learned else "none",
        "qk_norm": not isinstance(getattr(block.attn, "q_norm", absent), nn.Identity),
        "pre_norm": not isinstance(getattr(model, "norm_pre", absent), nn.Identity),
        "final_norm": final_norm if isinstance(model.fc_norm, nn.Identity) else "pooled",
        "positions_on_prefix": on_prefix,
        "positions_on_registers": on_prefix and learned and registers is not None,
        "norm": NORMS[type(block.norm1).__name__],
        "norm_eps": block.norm1.eps,
        "embedding_norm": not isinstance(model.patch_embed.norm, nn.Identity),
        "init": "normal",
    }
    common |= _pooling(model, block, reads_prefix=kind == "Eva")
    return ViTConfig(**(common | _feedforward(block, model.embed_dim, name) | own))


def _check_kind(model: Any, kind: str, name: str) -> None:
    """UnsupportedArchitecture for a class that is none of those whose parts are read."""
    _refuse(kind, name)
    if kind not in (*PLAIN, *FINDERS):
        raise _unsupported(name, f"the class {kind}; a plain VisionTransformer is")
    if not len(model.blocks):
        raise _unsupported(name, "no blocks")
    if kind in FINDERS and (part := FINDERS[kind](model)):
        raise _unsupported(name, part)


def _unsupported(name: str, what: str) -> UnsupportedArchitecture:
    return UnsupportedArchitecture(f"model.pretrained: {name!r} is not supported: it has {what}")


def _refuse(kind: str, name: str) -> None:
    if kind in UNSUPPORTED:
        raise _unsupported(name, UNSUPPORTED[kind])


def _pooling(model: Any, block: Any, *, reads_prefix: bool) -> dict[str, Any]:
    """The settings of the pooling; `reads_prefix`: attention reads the prefix tokens whatever the model says."""
    pool = getattr(model, "attn_pool", None)
    has_prefix = model.cls_token is not None or getattr(model, "reg_token", None) is not None
    if pool is None:
        return {
            "pool_prefix": has_prefix and model.global_pool == "avg" and getattr(model, "pool_include_prefix", False)
        }
    ratio, own = (mlp.fc1.out_features / model.embed_dim for mlp in (pool.mlp, block.mlp))
    return {
        "pool_prefix": has_prefix and (reads_prefix or getattr(model, "pool_include_prefix", False)),
        "pool_heads": None if pool.num_heads == block.attn.num_heads else pool.num_heads,
        "pool_mlp_ratio": None if ratio == own else ratio,
    }


def _feedforward(block: Any, width: int, name: str) -> dict[str, Any]:
    kind, activation, mlp = type(block.mlp).__name__, type(block.mlp.act).__name__, block.mlp
    hidden = mlp.fc2.in_features
    if activation == "SiLU" and (kind == "SwiGLU" or (kind == "GluMlp" and not mlp.gate_last)):
        return {
            "feedforward": "swiglu",
            "mlp_ratio": hidden * 1.5 / width,
            "swiglu_multiple": 1 if hidden % 8 else 8,
            "feedforward_norm": not isinstance(mlp.norm, nn.Identity),
        }
    if kind == "Mlp" and activation in ACTIVATIONS:
        return {"feedforward": ACTIVATIONS[activation], "mlp_ratio": hidden / width}
    raise _unsupported(name, f"the feed-forward layer {kind} with {activation}")


def _check_parts(model: Any, block: Any, name: str) -> None:
    """UnsupportedArchitecture unless the model meets the assumptions of ours."""
    identity = nn.Identity
    norms = [module for module in model.modules() if type(module).__name__.endswith("Norm")]
    kinds = {type(norm).__name__ for norm in norms}
    known = {"LayerNorm"} if isinstance(block.norm1, nn.LayerNorm) else {"RmsNorm"}
    image, patch = tuple(model.patch_embed.img_size), tuple(model.patch_embed.patch_size)
    unsupported = {
        f"norms of the kinds {', '.join(sorted(kinds))}": not all(
            isinstance(norm, nn.LayerNorm) or type(norm).__name__ in known for norm in norms
        ),
        "norms of several epsilons": len({norm.eps for norm in norms if hasattr(norm, "eps")}) != 1,
        "norms inside attention or feed-forward": type(model).__name__ not in OF_THEIR_OWN
        and not (isinstance(block.attn.norm, identity) and isinstance(block.mlp.norm, identity)),
        "biases in the attention's output and not in its feed-forward layer, or the reverse": (
            block.attn.proj.bias is None
        )
        != (block.mlp.fc2.bias is None),
        "a gate in its attention": getattr(block.attn, "gate", None) is not None,
        f"images of {image} pixels that its patches of {patch} do not divide (timm leaves the rest out)": any(
            side % step for side, step in zip(image, patch, strict=True)
        ),
        f"the pooling {model.global_pool!r}": model.global_pool not in POOLINGS,
    }
    for what, present in unsupported.items():
        if present:
            raise _unsupported(name, what)


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


def build_with(architecture: str, tensors: Mapping[str, Tensor] | None, name: str, **options: Any) -> Any:
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
