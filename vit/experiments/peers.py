"""The Vision Transformers of other libraries, with the weights of one of ours in them, and the proof that they agree.

vit-pytorch has no biases of queries, keys and values, and two norms more around its patch embedding: its blocks are
compared from the embedded tokens on. Knows no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vit.config import ViTConfig, check
from vit.evaluation.cost import count_parameters
from vit.experiments.absent import lacking
from vit.models.vision_transformer import VisionTransformer
from vit.weights.huggingface import answer, build_huggingface, to_huggingface
from vit.weights.layout import Layout, Tensors, copied, invert
from vit.weights.timm import TIMM
from vit.weights.timm_models import build_timm
from vit.weights.torchvision import TORCHVISION, build_torchvision

TOLERANCE = 1e-3
"""Of the largest difference, relative to the largest number, in float32."""
_ATTENTION, _FEEDFORWARD = "transformer.layers.{layer}.0", "transformer.layers.{layer}.1.net"
_SHARED_BY_VIT_PYTORCH = (
    copied("blocks.{layer}.norm1.{kind}", f"{_ATTENTION}.norm.{{kind}}"),
    copied("blocks.{layer}.attention.qkv.weight", f"{_ATTENTION}.to_qkv.weight"),
    copied("blocks.{layer}.attention.output.{kind}", f"{_ATTENTION}.to_out.0.{{kind}}"),
    copied("blocks.{layer}.norm2.{kind}", f"{_FEEDFORWARD}.0.{{kind}}"),
    copied("blocks.{layer}.feedforward.expand.{kind}", f"{_FEEDFORWARD}.1.{{kind}}"),
    copied("blocks.{layer}.feedforward.contract.{kind}", f"{_FEEDFORWARD}.4.{{kind}}"),
    copied("norm.{kind}", "transformer.norm.{kind}"),
    copied("pool_norm.{kind}", "transformer.norm.{kind}"),
    copied("head.{kind}", "mlp_head.{kind}"),
)


class Peer(NamedTuple):
    """A library whose models are compared."""

    package: str
    """What is imported."""
    build: Callable[[VisionTransformer], nn.Module]
    """`Absent` where it has no such model."""


def installed_peers() -> tuple[str, ...]:
    return tuple(name for name, peer in PEERS.items() if find_spec(peer.package) is not None)


def build_peer(name: str, ours: VisionTransformer) -> tuple[nn.Module, float]:
    """The library's model, `b 3 H W -> b k`, with our weights, and how far its numbers are from ours.

    `Absent` where there is none. RuntimeError where its numbers are not ours.
    """
    peer = PEERS[name].build(ours)
    compare = _trunk_difference if name == "vit-pytorch" else _difference
    found = compare(ours, peer)
    if not found < TOLERANCE:
        raise RuntimeError(f"{name} computes something else: largest relative difference {found:.1e}")
    return peer, found


def _of_layout(build: Callable[[ViTConfig], nn.Module], layout: Layout, ours: VisionTransformer) -> nn.Module:
    with lacking():
        model = build(ours.config)
    model.load_state_dict(invert(layout, _copy_of(ours), ours.config).tensors)
    return model


def _copy_of(ours: VisionTransformer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in ours.state_dict().items()}


class _Transformers(nn.Module):
    """A classifier of transformers whose answer is its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return answer(self.model(pixel_values=images))


def _transformers(ours: VisionTransformer) -> nn.Module:
    with lacking():
        _, tensors = to_huggingface(ours.config, _copy_of(ours))
    return _Transformers(build_huggingface(ours.config, tensors))


def _vit_pytorch(ours: VisionTransformer) -> nn.Module:
    from vit_pytorch import ViT

    config = ours.config
    with lacking():
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
    shared: Tensors = invert(layout, _copy_of(ours), ours.config).tensors
    own = {"cls_token", "pos_embedding"}
    said = model.load_state_dict(dict(shared), strict=False)
    assert not said.unexpected_keys, said.unexpected_keys
    missing = {name for name in said.missing_keys if not name.startswith("to_patch_embedding.")}
    assert missing <= own, missing
    sizes = [count_parameters(each) for each in (ours, model)]
    assert abs(sizes[0] - sizes[1]) < 0.01 * sizes[0], sizes


@torch.no_grad()
def _difference(ours: VisionTransformer, peer: nn.Module) -> float:
    images = torch.randn(2, 3, *ours.config.image_size, generator=torch.Generator().manual_seed(0))
    return _relative(ours.eval()(images), peer.eval()(images))


@torch.no_grad()
def _trunk_difference(ours: VisionTransformer, peer: Any) -> float:
    """From the same tokens to those after the last norm, ours without the biases that vit-pytorch does not have."""
    twin: Any = deepcopy(ours).eval()
    x = torch.randn(2, 7, ours.config.width, generator=torch.Generator().manual_seed(0))
    expected = peer.eval().transformer(x)
    for block in twin.blocks:
        bias = block.attention.qkv.bias
        if bias is not None:
            bias.zero_()
        x = block(x)
    return _relative(twin.pool_norm(twin.norm(x)), expected)


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


PEERS = {
    "timm": Peer("timm", partial(_of_layout, build_timm, TIMM)),
    "torchvision": Peer("torchvision", partial(_of_layout, build_torchvision, TORCHVISION)),
    "transformers": Peer("transformers", _transformers),
    "vit-pytorch": Peer("vit_pytorch", _vit_pytorch),
}
