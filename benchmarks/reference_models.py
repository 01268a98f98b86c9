"""Vision Transformers of other libraries with the weights of one of ours, checked to compute the same.

vit-pytorch has no biases of queries, keys and values, and two more norms around its patch embedding: only its blocks
are compared, from the embedded tokens on.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.unsupported import as_unsupported
from vit.config import ViTConfig, check
from vit.evaluation.cost import count_parameters
from vit.libraries import NoCounterpart
from vit.libraries.timm_writing import build_timm
from vit.libraries.torchvision import build_torchvision
from vit.libraries.transformers import TransformersModel
from vit.models.vision_transformer import VisionTransformer
from vit.weights.huggingface import build_huggingface, to_huggingface
from vit.weights.layout import Layout, Tensors, copied, invert_rules
from vit.weights.timm import TIMM
from vit.weights.torchvision import TORCHVISION

TOLERANCE = 1e-3
"""Largest difference relative to the largest value, in float32."""
_ATTENTION, _FEEDFORWARD = "transformer.layers.{layer}.0", "transformer.layers.{layer}.1.net"
_SHARED_BY_VIT_PYTORCH = (
    copied("blocks.{layer}.norm1.{kind}", f"{_ATTENTION}.norm.{{kind}}"),
    copied("blocks.{layer}.attention.qkv.weight", f"{_ATTENTION}.to_qkv.weight"),
    copied("blocks.{layer}.attention.output.{kind}", f"{_ATTENTION}.to_out.0.{{kind}}"),
    copied("blocks.{layer}.norm2.{kind}", f"{_FEEDFORWARD}.0.{{kind}}"),
    copied("blocks.{layer}.feedforward.fc1.{kind}", f"{_FEEDFORWARD}.1.{{kind}}"),
    copied("blocks.{layer}.feedforward.fc2.{kind}", f"{_FEEDFORWARD}.4.{{kind}}"),
    copied("norm.{kind}", "transformer.norm.{kind}"),
    copied("pool_norm.{kind}", "transformer.norm.{kind}"),
    copied("head.{kind}", "mlp_head.{kind}"),
)


class ReferenceModel(NamedTuple):
    """A library that models are built with for comparison."""

    package: str
    build: Callable[[VisionTransformer], nn.Module]
    """Raises `Unsupported` if the library has no such model."""


def installed_references() -> tuple[str, ...]:
    return tuple(name for name, reference in REFERENCES.items() if find_spec(reference.package) is not None)


def build_reference(name: str, ours: VisionTransformer) -> tuple[nn.Module, float]:
    """Build the library's model, `b 3 H W -> b k`, with our weights, and return how far its results are from ours.

    `Unsupported` if the library has none. RuntimeError if its results differ.
    """
    reference = REFERENCES[name].build(ours)
    difference = (_trunk_difference if name == "vit-pytorch" else _difference)(ours, reference)
    if not difference < TOLERANCE:
        raise RuntimeError(f"{name} computes something else: largest relative difference {difference:.1e}")
    return reference, difference


def _by_layout(build: Callable[[ViTConfig], nn.Module], layout: Layout, ours: VisionTransformer) -> nn.Module:
    with as_unsupported(NoCounterpart):
        model = build(ours.config)
    model.load_state_dict(invert_rules(layout, _copy_of(ours), ours.config).tensors)
    return model


def _copy_of(ours: VisionTransformer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in ours.state_dict().items()}


def _transformers(ours: VisionTransformer) -> nn.Module:
    with as_unsupported(NoCounterpart):
        _, tensors = to_huggingface(ours.config, _copy_of(ours))
    return TransformersModel(build_huggingface(ours.config, tensors))


def _vit_pytorch(ours: VisionTransformer) -> nn.Module:
    from vit_pytorch import ViT

    config = ours.config
    with as_unsupported():
        _check_plain(config)
    model: nn.Module = ViT(
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        dim=config.width,
        depth=config.depth,
        heads=config.num_heads,
        dim_head=config.width // config.num_heads,
        mlp_dim=round(config.width * config.mlp_ratio),
        pool="cls" if config.pooling == "cls" else "mean",
    )
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = config.norm_eps
    _fill(model, ours)
    return model


def _check_plain(config: ViTConfig) -> None:
    rule = "vit-pytorch has no such model"
    plain = ViTConfig(pooling=config.pooling, class_token=config.class_token)
    for field in ("positions", "feedforward", "qk_norm", "num_registers", "layer_scale", "stem", "distillation_token"):
        value = getattr(config, field)
        check(value == getattr(plain, field), f"model.{field}", value, rule)
    check(config.pooling in ("cls", "gap"), "model.pooling", config.pooling, rule)


def _fill(model: nn.Module, ours: VisionTransformer) -> None:
    layout = Layout("vit-pytorch", lambda tensors: False, _SHARED_BY_VIT_PYTORCH, lambda tensors: None)  # noqa: ARG005
    shared: Tensors = invert_rules(layout, _copy_of(ours), ours.config).tensors
    own = {"cls_token", "pos_embedding"}
    loaded = model.load_state_dict(dict(shared), strict=False)
    assert not loaded.unexpected_keys, loaded.unexpected_keys
    missing = {name for name in loaded.missing_keys if not name.startswith("to_patch_embedding.")}
    assert missing <= own, missing
    sizes = [count_parameters(each) for each in (ours, model)]
    assert abs(sizes[0] - sizes[1]) < 0.01 * sizes[0], sizes


@torch.no_grad()
def _difference(ours: VisionTransformer, reference: nn.Module) -> float:
    images = torch.randn(2, 3, *ours.config.image_size, generator=torch.Generator().manual_seed(0))
    return _relative(ours.eval()(images), reference.eval()(images))


@torch.no_grad()
def _trunk_difference(ours: VisionTransformer, reference: Any) -> float:
    """Compare from the same tokens to those after the last norm, ours without the biases that vit-pytorch lacks."""
    copy: Any = deepcopy(ours).eval()
    x = torch.randn(2, 7, ours.config.width, generator=torch.Generator().manual_seed(0))
    expected = reference.eval().transformer(x)
    for block in copy.blocks:
        bias = block.attention.qkv.bias
        if bias is not None:
            bias.zero_()
        x = block(x)
    return _relative(copy.pool_norm(copy.norm(x)), expected)


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


REFERENCES = {
    "timm": ReferenceModel("timm", partial(_by_layout, build_timm, TIMM)),
    "torchvision": ReferenceModel("torchvision", partial(_by_layout, build_torchvision, TORCHVISION)),
    "transformers": ReferenceModel("transformers", _transformers),
    "vit-pytorch": ReferenceModel("vit_pytorch", _vit_pytorch),
}
