"""Names of a ResNet's tensors: torchvision's, which are ours too, and those of the CIFAR ResNets.

The tensors determine the architecture, except for the size of the images.
"""

from __future__ import annotations

from vit.config import ResNetConfig
from vit.models.resnet import infer_config
from vit.weights.layout import Layout, Rule, Tensors, apply_rules, copied


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
    return "layer1.0.conv1.weight" in tensors and "layer1.0.bn1.weight" in tensors


def _cifar_config(tensors: Tensors) -> ResNetConfig:
    return infer_config(apply_rules(CIFAR, tensors, ResNetConfig()).tensors)


TORCHVISION = Layout(
    name="torchvision ResNet",
    recognizes=lambda tensors: _is_resnet(tensors) and "linear.weight" not in tensors,
    rules=(*_STEM, *_BLOCKS, *_unchanged("fc.{kind}")),
    config=infer_config,
)
CIFAR = Layout(
    name="cifar ResNet",
    recognizes=lambda tensors: _is_resnet(tensors) and "linear.weight" in tensors,
    rules=CIFAR_RULES,
    config=_cifar_config,
)
"""github.com/kuangliu/pytorch-cifar, whose names akamaster/pytorch_resnet_cifar10 kept."""
LAYOUTS = (TORCHVISION, CIFAR)
