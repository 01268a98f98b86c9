"""Architectures of timm's models as our configurations.

Architectures that our Vision Transformer does not compute are refused, naming the part.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from vit.config import ResNetConfig, ViTConfig
from vit.libraries import UnsupportedArchitecture, resnets, timm_beit, timm_eva, timm_naflex
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
OF_THEIR_OWN = {"Eva": timm_eva, "Beit": timm_beit}
"""Class of a model whose blocks are not those of timm's other Vision Transformers → the module that knows it."""
PLAIN = ("VisionTransformer", "VisionTransformerDistilled")
FINDERS = {"NaFlexVit": timm_naflex.unsupported_part} | {
    kind: module.unsupported_part for kind, module in OF_THEIR_OWN.items()
}
"""Class of a model → what names the first part of it that is not supported."""
NORMS = {"LayerNorm": "layer", "RmsNorm": "rms"}


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
