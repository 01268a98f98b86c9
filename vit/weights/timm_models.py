"""Which architecture a model of timm's has, in our words, and which model of timm's an architecture of ours is.

What our Vision Transformer does not compute is refused by a line that names it. Knows no tensor's values.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor, nn

from vit.config import Interpolation, Preprocessing, ViTConfig, nearest
from vit.weights.layout import Forward

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer as TimmViT

UNSUPPORTED = {
    "VisionTransformerRelPos": "relative position biases",
    "VisionTransformerSAM": "windows with relative positions",
    "SwinTransformer": "windows with relative position biases",
    "SwinTransformerV2": "windows with relative position biases",
    "Eva": "EVA's blocks (rotary positions as timm computes them)",
    "Beit": "relative position biases",
    "HybridEmbed": "a hybrid's convolutional stem",
    "ParallelScalingBlock": "attention and feed-forward in parallel",
    "DiffParallelScalingBlock": "differential attention",
    "DiffAttention": "differential attention",
    "ParallelThingsBlock": "several branches in parallel in one block",
    "ResPostBlock": "norms after the branches",
}
"""Class of a model or of a part of one → what of it is not supported."""
FAMILIES = ("vit_", "deit_", "deit3_", "flexivit_")
ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu"}
POOLINGS = {"token": "cls", "avg": "gap", "map": "map"}


def is_timm_resnet(name: str) -> bool:
    """Whether timm's name is of a ResNet that we have under the same name."""
    return name.split(".")[0] in ("resnet18", "resnet34", "resnet50")


def is_timm_vit(name: str) -> bool:
    """Whether timm has a Vision Transformer of that name."""
    import timm

    return name.startswith(FAMILIES) and timm.is_model(name.split(".")[0])


def timm_config(name: str, **options: Any) -> ViTConfig:
    """The architecture of timm's model of that name, built without weights; `options` are timm's.

    ValueError for a name that timm does not have, and naming what is not supported.
    """
    import timm

    check_timm_name(name)
    with torch.device("meta"):
        return config_of(timm.create_model(name, **options), name)


def check_timm_name(name: str) -> None:
    """ValueError for a name that timm does not have."""
    import timm

    if not timm.is_model(name.split(".")[0]):
        raise ValueError(f"model.pretrained: timm has no model {name!r}; {nearest(name, timm.list_models())}")


def config_of(model: Any, name: str) -> ViTConfig:
    """The architecture of a timm model. ValueError naming what of it is not supported."""
    _refuse(type(model).__name__, name)
    distilled = type(model).__name__ == "VisionTransformerDistilled"
    if not distilled and type(model).__name__ != "VisionTransformer":
        raise unsupported(name, f"the class {type(model).__name__}; a plain VisionTransformer is")
    block = model.blocks[0]
    for part in (model.patch_embed, block, block.attn if hasattr(block, "attn") else None):
        _refuse(type(part).__name__, name)
    _check_parts(model, block, name)
    return ViTConfig(
        **_sizes(model, block, name),
        **_feedforward(block, model.embed_dim, name),
        pooling=_pooling(model, name),
        class_token=model.cls_token is not None,
        distillation_token=distilled,
        num_registers=0 if model.reg_token is None else model.reg_token.shape[1],
        positions="none" if model.pos_embed is None else "learned_1d",
        qk_norm=not isinstance(block.attn.q_norm, nn.Identity),
        qkv_bias=block.attn.qkv.bias is not None,
        pre_norm=not isinstance(model.norm_pre, nn.Identity),
        final_norm=_final_norm(model),
        positions_on_prefix=not model.no_embed_class,
        positions_on_registers=not model.no_embed_class and None not in (model.reg_token, model.pos_embed),
        layer_scale=getattr(block.ls1, "init_values", None),
        norm_eps=block.norm1.eps,
        init="normal",
    )


def unsupported(name: str, what: str) -> ValueError:
    return ValueError(f"model.pretrained: {name!r} is not supported: it has {what}")


def _refuse(kind: str, name: str) -> None:
    if kind in UNSUPPORTED:
        raise unsupported(name, UNSUPPORTED[kind])


def _sizes(model: Any, block: Any, name: str) -> dict[str, Any]:
    image, patch = tuple(model.patch_embed.img_size), tuple(model.patch_embed.patch_size)
    if any(side % step for side, step in zip(image, patch, strict=True)):
        what = f"images of {image} pixels that its patches of {patch} do not divide (timm leaves the rest out)"
        raise unsupported(name, what)
    return {
        "image_size": image,
        "patch_size": patch,
        "num_classes": model.num_classes,
        "width": model.embed_dim,
        "depth": len(model.blocks),
        "num_heads": block.attn.num_heads,
    }


def _feedforward(block: Any, width: int, name: str) -> dict[str, Any]:
    kind, activation = type(block.mlp).__name__, type(block.mlp.act).__name__
    if kind == "GluMlp" and activation == "SiLU" and not block.mlp.gate_last and block.mlp.fc2.in_features % 8 == 0:
        return {"feedforward": "swiglu", "mlp_ratio": block.mlp.fc2.in_features * 1.5 / width}
    if kind == "Mlp" and activation in ACTIVATIONS:
        return {"feedforward": ACTIVATIONS[activation], "mlp_ratio": block.mlp.fc1.out_features / width}
    raise unsupported(name, f"the feed-forward layer {kind} with {activation}")


def _final_norm(model: Any) -> Any:
    if not isinstance(model.fc_norm, nn.Identity):
        return "pooled"
    return "none" if isinstance(model.norm, nn.Identity) else "tokens"


def _pooling(model: Any, name: str) -> Any:
    if model.global_pool not in POOLINGS:
        raise unsupported(name, f"the pooling {model.global_pool!r}")
    return POOLINGS[model.global_pool]


def _check_parts(model: Any, block: Any, name: str) -> None:
    """What our block and model take for granted."""
    identity = nn.Identity
    norms = [module for module in model.modules() if type(module).__name__.endswith("Norm")]
    missing = {
        "norms of several kinds": not all(isinstance(norm, nn.LayerNorm) for norm in norms),
        "norms of several epsilons": len({norm.eps for norm in norms if hasattr(norm, "eps")}) != 1,
        "norms inside attention or feed-forward": not isinstance(block.attn.norm, identity)
        or not isinstance(block.mlp.norm, identity),
        "no bias in the attention's output": block.attn.proj.bias is None,
        "a gate in its attention": getattr(block.attn, "gate", None) is not None,
        "a pooling that reads its prefix tokens": model.pool_include_prefix and model.global_pool != "token",
        "a norm in its patch embedding": not isinstance(model.patch_embed.norm, identity),
    }
    for what, found in missing.items():
        if found:
            raise unsupported(name, what)


def timm_preprocessing(settings: Mapping[str, Any], name: str) -> Preprocessing:
    """timm's `pretrained_cfg` in our words. ValueError for images that are resized or cut in another way."""
    mode, interpolation = settings.get("crop_mode") or "center", settings["interpolation"]
    if mode not in ("center", "squash") or interpolation not in get_args(Interpolation):
        raise ValueError(f"model.pretrained: {name!r} is not supported: its images are cut by {mode}, {interpolation}")
    return Preprocessing(
        image_size=tuple(settings["input_size"][1:]),
        crop_fraction=settings["crop_pct"],
        squash=mode == "squash",
        interpolation=interpolation,
        mean=tuple(settings["mean"]),
        std=tuple(settings["std"]),
    )


def timm_forward(config: ViTConfig, tensors: Mapping[str, Tensor]) -> Forward:
    """timm's own Vision Transformer of this architecture with these tensors. ValueError where timm has none."""
    model = build_timm(config)
    model.load_state_dict(dict(tensors))
    return model.eval()


def build_timm(config: ViTConfig) -> TimmViT:
    """timm's own Vision Transformer of this architecture. ValueError where timm has none."""
    from timm.layers import GluMlp
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import VisionTransformer

    _check_expressible(config)
    options: dict[str, Any] = {"class_token": config.class_token, "reg_tokens": config.num_registers}
    if config.feedforward == "swiglu":
        hidden = -(-round(config.width * config.mlp_ratio) * 2 // 3 // 8) * 8
        options |= {"mlp_layer": partial(GluMlp, gate_last=False), "act_layer": nn.SiLU}
        ratio = 2 * hidden / config.width
    else:
        options["act_layer"] = config.feedforward
        ratio = config.mlp_ratio
    kind = VisionTransformerDistilled if config.distillation_token else VisionTransformer
    if kind is VisionTransformerDistilled:
        del options["class_token"], options["reg_tokens"]  # it always has its own two tokens
    return kind(
        img_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        global_pool={"cls": "token", "gap": "avg", "map": "map"}[config.pooling],
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_ratio=(round(config.width * ratio) + 0.5) / config.width,  # timm rounds down
        qkv_bias=config.qkv_bias,
        qk_norm=config.qk_norm,
        init_values=config.layer_scale,
        drop_path_rate=config.stochastic_depth_rate,
        pos_embed="none" if config.positions == "none" else "learn",
        no_embed_class=config.num_placed_tokens == 0,
        pre_norm=config.pre_norm,
        final_norm=config.final_norm != "none",
        fc_norm=config.final_norm == "pooled",
        norm_layer=partial(nn.LayerNorm, eps=config.norm_eps),
        **options,
    )


def _check_expressible(config: ViTConfig) -> None:
    distilled, learned = config.distillation_token, config.positions == "learned_1d"
    all_or_none = config.positions == "none" or config.num_placed_tokens in (0, config.num_prefix_tokens)
    beside = "beside a distillation token"
    taken = {
        "positions": (learned or (config.positions == "none" and not distilled), f"learned_1d and, not {beside}, none"),
        "stem": (config.stem == "patch", "patch"),
        "pooling": (config.pooling in POOLINGS.values(), ", ".join(POOLINGS.values())),
        "feedforward": (
            config.feedforward != "swiglu" or config.pooling != "map",
            f"{', '.join(ACTIVATIONS.values())} beside model.pooling 'map'",
        ),
        "final_norm": (config.final_norm != "pooled" or not distilled, f"tokens, none {beside}"),
        "representation_width": (config.representation_width is None, "none"),
        "head_bias": (config.head_bias, "true"),
        "distillation_head": (config.distillation_head, "true"),
        "num_registers": (not (distilled and config.num_registers), f"0 {beside}"),
        "positions_on_prefix": (config.positions_on_prefix or not distilled, f"true {beside}"),
        "positions_on_registers": (all_or_none, "true where model.positions_on_prefix is, and there are registers"),
    }
    for field, (met, known) in taken.items():
        if not met:
            raise ValueError(f"--to: timm has no model with model.{field} {getattr(config, field)!r}; it has {known}")
