"""Names of a ResNet's tensors: torchvision's, which are ours too, and those of the CIFAR ResNets.

The tensors determine the architecture, except for the size of the images.
"""

from __future__ import annotations

from torch import nn

from vit.config import ResNetConfig
from vit.libraries import resnets
from vit.models.resnet import infer_config
from vit.weights.layout import Forward, Layout, Rule, Tensors, apply_rules, copied


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
)
TORCHVISION = Layout(
    name="torchvision ResNet",
    recognizes=lambda tensors: _is_resnet(tensors) and not _is_deep(tensors) and "linear.weight" not in tensors,
    rules=RULES,
    config=infer_config,
    reference=torchvision_forward,
)
CIFAR = Layout(
    name="cifar ResNet",
    recognizes=lambda tensors: _is_resnet(tensors) and "linear.weight" in tensors,
    rules=CIFAR_RULES,
    config=_cifar_config,
)
"""github.com/kuangliu/pytorch-cifar, whose names akamaster/pytorch_resnet_cifar10 kept."""
LAYOUTS = (TIMM, TORCHVISION, CIFAR)
