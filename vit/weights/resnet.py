"""Names of a ResNet's tensors: torchvision's, which are ours, those of the CIFAR ResNets, and BiT's in timm and npz.

The tensors determine the architecture, except for the size of the images.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from vit.config import ResNetConfig
from vit.libraries import resnets
from vit.models.resnet import infer_config
from vit.weights.files import write_tensors
from vit.weights.layout import Forward, Layout, Rule, Tensors, apply_rules, copied, reshaped


def _unchanged(*names: str) -> tuple[Rule, ...]:
    return tuple(copied(name, name) for name in names)


_STEM = _unchanged("conv1.{rest}", "bn1.{rest}")
_BLOCKS = _unchanged("layer{layer}.{rest}")
CIFAR_RULES = (
    *_STEM,
    copied("layer{layer}.{block}.downsample.{rest}", "layer{layer}.{block}.shortcut.{rest}"),
    *_BLOCKS,
    copied("fc.{kind}", "linear.{kind}"),
)


def _is_resnet(tensors: Tensors) -> bool:
    has_stem = "conv1.weight" in tensors or "conv1.0.weight" in tensors
    return has_stem and all(f"layer1.0.{name}.weight" in tensors for name in ("conv1", "bn1", "conv2"))


def _is_deep(tensors: Tensors) -> bool:
    """ResNet-D's stem or shortcuts, which torchvision does not have."""
    shortcut = tensors.get("layer2.0.downsample.1.weight")
    return "conv1.0.weight" in tensors or (shortcut is not None and shortcut.dim() == 4)


def timm_forward(config: ResNetConfig, tensors: Tensors) -> Forward:
    """Build timm's own model with these tensors. ValueError for an architecture that it does not have."""
    return _loaded(resnets.build_timm(config), tensors)


def torchvision_forward(config: ResNetConfig, tensors: Tensors) -> Forward:
    """Build torchvision's own model with these tensors. ValueError for an architecture that it does not have."""
    return _loaded(resnets.build_torchvision(config), tensors)


def _loaded(model: nn.Module, tensors: Tensors) -> Forward:
    model.load_state_dict(dict(tensors))
    return model.eval()


RULES = (*_STEM, *_BLOCKS, *_unchanged("fc.{kind}"))
TIMM = Layout(
    name="timm ResNet",
    recognizes=lambda tensors: _is_resnet(tensors) and _is_deep(tensors),
    rules=RULES,
    config=infer_config,
    reference=timm_forward,
    check_config=resnets.check_timm,
)
TORCHVISION = Layout(
    name="torchvision ResNet",
    recognizes=lambda tensors: _is_resnet(tensors) and not _is_deep(tensors) and "linear.weight" not in tensors,
    rules=RULES,
    config=infer_config,
    reference=torchvision_forward,
    check_config=resnets.check_torchvision,
)
CIFAR: Layout = Layout(
    name="cifar ResNet",
    recognizes=lambda tensors: _is_resnet(tensors) and "linear.weight" in tensors,
    rules=CIFAR_RULES,
    config=lambda tensors: infer_config(apply_rules(CIFAR, tensors, ResNetConfig()).tensors),
)
"""github.com/kuangliu/pytorch-cifar, whose names akamaster/pytorch_resnet_cifar10 kept."""


# ------------------------------------------------------------------ version 2 (BiT)


def _timm_v2_rules() -> Iterator[Rule]:
    yield copied("conv1.{kind}", "stem.conv.{kind}")
    for stage in range(1, 5):
        ours, theirs = f"layer{stage}.{{block}}", f"stages.{stage - 1}.blocks.{{block}}"
        yield copied(f"{ours}.downsample.{{kind}}", f"{theirs}.downsample.conv.{{kind}}")
        yield copied(f"{ours}.{{rest}}", f"{theirs}.{{rest}}")
    yield copied("norm.{kind}", "norm.{kind}")
    yield reshaped("fc.weight", "head.fc.weight", "k c 1 1 -> k c")
    yield copied("fc.bias", "head.fc.bias")


def _npz_rules() -> Iterator[Rule]:
    """Google's names count units from 01, and kernels are height, width, in, out."""
    kernel = "kh kw i o -> o i kh kw"

    def norm(ours: str, theirs: str) -> Iterator[Rule]:
        yield copied(f"{ours}.weight", f"{theirs}/group_norm/gamma")
        yield copied(f"{ours}.bias", f"{theirs}/group_norm/beta")

    yield reshaped("conv1.weight", "resnet/root_block/standardized_conv2d/kernel", kernel)
    for stage, deepest in enumerate((3, 8, 36, 3), start=1):
        for block in range(deepest):
            ours, theirs = f"layer{stage}.{block}", f"resnet/block{stage}/unit{block + 1:02d}"
            for number, letter in enumerate("abc", start=1):
                yield from norm(f"{ours}.norm{number}", f"{theirs}/{letter}")
                weight = f"{theirs}/{letter}/standardized_conv2d/kernel"
                yield reshaped(f"{ours}.conv{number}.weight", weight, kernel)
            projection = f"{theirs}/a/proj/standardized_conv2d/kernel"
            yield reshaped(f"{ours}.downsample.weight", projection, kernel)
    yield from norm("norm", "resnet")
    yield reshaped("fc.weight", "resnet/head/conv2d/kernel", "1 1 c k -> k c")
    yield copied("fc.bias", "resnet/head/conv2d/bias")


def timm_v2_forward(config: ResNetConfig, tensors: Tensors) -> Forward:
    """Build timm's own ResNetV2 with these tensors. ValueError for an architecture that it does not have."""
    return _loaded(resnets.build_timm_v2(config), tensors)


def npz_forward(config: ResNetConfig, tensors: Tensors) -> Forward:
    """Build timm's ResNetV2 through timm's own reader of BiT's files."""
    model: Any = resnets.build_timm_v2(config)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "weights.npz"
        write_tensors(path, tensors)
        with torch.no_grad():
            model.load_pretrained(str(path))
    forward: Forward = model.eval()
    return forward


TIMM_V2: Layout = Layout(
    name="timm ResNetV2",
    recognizes=lambda tensors: "stem.conv.weight" in tensors and "stages.0.blocks.0.norm3.weight" in tensors,
    rules=tuple(_timm_v2_rules()),
    config=lambda tensors: infer_config(apply_rules(TIMM_V2, tensors, ResNetConfig()).tensors),
    reference=timm_v2_forward,
)
NPZ: Layout = Layout(
    name="npz ResNetV2",
    recognizes=lambda tensors: "resnet/root_block/standardized_conv2d/kernel" in tensors,
    rules=tuple(_npz_rules()),
    config=lambda tensors: infer_config(apply_rules(NPZ, tensors, ResNetConfig()).tensors),
    reference=npz_forward,
)
"""github.com/google-research/big_transfer's files."""
LAYOUTS = (TIMM, TORCHVISION, CIFAR, TIMM_V2, NPZ)
