"""ResNets of timm and torchvision: which ones this package computes, and their own models of our architectures."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from vit.config import ResNetConfig
from vit.config.resnet import STAGES
from vit.libraries import NoCounterpart, UnsupportedArchitecture
from vit.models import build_model
from vit.models.resnet import infer_config

PARTS = (
    *("ResNet", "BasicBlock", "Bottleneck", "Sequential", "Identity", "Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"),
    *("AvgPool2d", "SelectAdaptivePool2d", "AdaptiveAvgPool2d", "FastAdaptiveAvgPool", "Flatten", "Linear"),
)
"""Classes of modules in the ResNets of timm that ours computes."""
PARTS_V2 = (
    *("ResNetV2", "ResNetStage", "PreActBottleneck", "DownsampleConv", "StdConv2d", "GroupNormAct", "ConstantPad2d"),
    *("Sequential", "Identity", "ReLU", "MaxPool2d", "ClassifierHead", "SelectAdaptivePool2d", "AdaptiveAvgPool2d"),
    *("FastAdaptiveAvgPool", "Flatten", "Dropout", "Conv2d"),
)
"""The same for timm's ResNetV2."""


def config_of_timm(model: Any, name: str) -> ResNetConfig:
    """The architecture of a timm ResNet or ResNetV2. UnsupportedArchitecture naming an unsupported part."""
    second = type(model).__name__ == "ResNetV2"
    kinds = (type(module).__name__ for module in model.modules())
    foreign = next((kind for kind in kinds if kind not in (PARTS_V2 if second else PARTS)), None)
    if foreign:
        raise UnsupportedArchitecture(f"model.pretrained: {name!r} is not supported: it has the part {foreign}")
    return _second_version(model, name) if second else _first_version(model, name)


def _second_version(model: Any, name: str) -> ResNetConfig:
    form = "bottleneck", tuple(len(stage.blocks) for stage in model.stages)
    depth = next((depth for depth, stages in STAGES.items() if stages == form), 0)
    theirs = {key: value.shape for key, value in model.state_dict().items()}
    width = model.stem.conv.out_channels if hasattr(model.stem, "conv") else 0
    if depth and width and width % 32 == 0 and hasattr(model.stem, "pad"):
        config = ResNetConfig(depth=depth, width=width, num_classes=model.num_classes, version=2)
        with torch.device("meta"):
            same = build_timm_v2(config)
        if {key: value.shape for key, value in same.state_dict().items()} == theirs and str(same) == str(model):
            return config
    raise UnsupportedArchitecture(f"model.pretrained: {name!r} is not supported: it is no ResNetV2 of BiT")


def _first_version(model: Any, name: str) -> ResNetConfig:
    blocks = [block for stage in (model.layer1, model.layer2, model.layer3, model.layer4) for block in stage]
    unsupported = {
        "a stem that pools by convolution or averages": not isinstance(model.maxpool, nn.MaxPool2d),
        "anti-aliasing": not all(isinstance(block.aa, nn.Identity) for block in blocks),
        "dilated convolutions": any(block.dilation != 1 for block in blocks),
        f"the pooling {model.global_pool.pool_type!r}": model.global_pool.pool_type != "avg",
    }
    what = next((part for part, present in unsupported.items() if present), None)
    theirs = model.state_dict()
    if what is None:
        try:
            config = infer_config(theirs)
        except ValueError as error:
            raise UnsupportedArchitecture(f"model.pretrained: {name!r} is not supported: {error}") from error
        with torch.device("meta"):
            ours = build_model(config).state_dict()
        what = next((key for key, value in theirs.items() if key not in ours or ours[key].shape != value.shape), None)
        if what is None:
            return config
        what = f"{what} of the shape {tuple(theirs[what].shape)}"
    raise UnsupportedArchitecture(f"model.pretrained: {name!r} is not supported: it has {what}")


def build_torchvision(config: ResNetConfig) -> nn.Module:
    """Build torchvision's own ResNet. ValueError where it has no such architecture."""
    from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

    check_torchvision(config)
    block, depths = STAGES[config.depth]
    return ResNet(
        BasicBlock if block == "basic" else Bottleneck,
        list(depths),
        num_classes=config.num_classes,
        groups=config.groups,
        width_per_group=config.group_width or 64,
    )


def build_timm(config: ResNetConfig) -> nn.Module:
    """Build timm's own ResNet. ValueError where it has no such architecture."""
    from timm.models.resnet import BasicBlock, Bottleneck, ResNet

    check_timm(config)
    _check_channels("timm", config)
    block, depths = STAGES[config.depth]
    model: nn.Module = ResNet(
        BasicBlock if block == "basic" else Bottleneck,
        depths,
        num_classes=config.num_classes,
        cardinality=config.groups,
        base_width=64 * (config.group_width or config.width) / config.width,
        stem_width=config.width // 2,
        stem_type="deep" if config.stem == "deep" else "",
        avg_down=config.shortcut == "average",
        channels=tuple(config.width * 2**index for index in range(4)),
    )
    return model


def build_timm_v2(config: ResNetConfig) -> nn.Module:
    """Build timm's own ResNetV2 of BiT. ValueError for another version."""
    from timm.layers import StdConv2d
    from timm.models.resnetv2 import ResNetV2

    _check_channels("timm", config)
    _check_expressible("timm", config, version=(2,))
    return ResNetV2(
        list(STAGES[config.depth][1]),
        channels=tuple(config.width * factor for factor in (4, 8, 16, 32)),
        num_classes=config.num_classes,
        stem_chs=config.width,
        stem_type="fixed",
        conv_layer=partial(StdConv2d, eps=1e-8),
    )


def _check_stages(config: ResNetConfig, library: str) -> None:
    """NoCounterpart for the ResNets of CIFAR, which no library has."""
    if len(STAGES[config.depth][1]) != 4:
        raise NoCounterpart(f"--to: {library} has no ResNet with model.depth {config.depth}: it has three stages")


def check_torchvision(config: ResNetConfig) -> None:
    """NoCounterpart for a ResNet that torchvision does not have."""
    _check_channels("torchvision", config)
    _check_expressible("torchvision", config, stem=("imagenet",), shortcut=("projection",), width=(64,), version=(1,))


def check_timm(config: ResNetConfig) -> None:
    """NoCounterpart for a ResNet that timm does not have."""
    _check_expressible("timm", config, stem=("imagenet", "deep"), shortcut=("projection", "average"), version=(1,))
    if config.stem == "imagenet":
        _check_expressible("timm", config, width=(64,))


def _check_channels(library: str, config: ResNetConfig) -> None:
    if config.in_channels != 3:
        raise NoCounterpart(f"--to: {library}'s ResNets are compared on 3 channels, not {config.in_channels}")


def _check_expressible(library: str, config: ResNetConfig, **choices: tuple[Any, ...]) -> None:
    _check_stages(config, library)
    for field, possible in choices.items():
        value = getattr(config, field)
        if value not in possible:
            rule = f"it has {', '.join(map(str, possible))}"
            raise NoCounterpart(f"--to: {library} has no ResNet with model.{field} {value!r}; {rule}")
