"""ResNets against torchvision's, and the interface that they share with the Vision Transformer."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torchvision
from torch import nn

from vit.config import ResNetConfig
from vit.models import ResNet, build_model


@pytest.mark.parametrize("depth", [18, 34, 50])
def test_equal_to_torchvision(depth: int) -> None:
    theirs = getattr(torchvision.models, f"resnet{depth}")(num_classes=7).eval()
    ours = ResNet(ResNetConfig(depth=depth, num_classes=7)).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    images = torch.randn(2, 3, 64, 96)
    logits, expected = ours(images), theirs(images)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    if depth == 18:
        logits.square().sum().backward()
        expected.square().sum().backward()
        for name, parameter in theirs.named_parameters():
            torch.testing.assert_close(ours.get_parameter(name).grad, parameter.grad, atol=1e-3, rtol=1e-3, msg=name)


def test_stem_and_width_have_an_effect() -> None:
    small = ResNet(ResNetConfig(depth=18, stem="cifar", width=16, num_classes=10))
    images = torch.randn(2, 3, 32, 32)
    assert small.forward_features(images).shape == (2, 128, 4, 4)
    assert ResNet(ResNetConfig(depth=18, num_classes=10)).forward_features(images).shape == (2, 512, 1, 1)
    assert small.pool(small.forward_features(images)).shape == (2, 128)
    assert small.conv1.weight.shape == (16, 3, 3, 3)
    assert ResNet(ResNetConfig(depth=18, num_classes=0, width=8))(images).shape == (2, 64)


def last_norms(model: ResNet, name: str) -> list[nn.BatchNorm2d]:
    """Those of every block; at least one."""
    found = [module for path, module in model.named_modules() if path.startswith("layer") and path.endswith(f".{name}")]
    assert found
    return [norm for norm in found if isinstance(norm, nn.BatchNorm2d)]


def test_branches_start_at_zero() -> None:
    torch.manual_seed(0)
    model = ResNet(ResNetConfig(depth=50, num_classes=3))
    assert all((norm.weight == 0).all() for norm in last_norms(model, "bn3"))
    model = ResNet(ResNetConfig(depth=18, num_classes=3))
    assert all((norm.weight == 0).all() for norm in last_norms(model, "bn2"))


def test_contract() -> None:
    model = ResNet(ResNetConfig(depth=18, num_classes=3))
    layers = {name: model.layer_of(name) for name, _ in model.named_parameters()}
    assert layers["conv1.weight"] == layers["bn1.bias"] == 0
    assert layers["layer1.0.conv1.weight"] == 1
    assert layers["fc.weight"] == model.num_layers == 5
    assert model.head_names() == ("fc",)
    assert all(("conv" in n or "downsample.0" in n or n == "fc.weight") for n in set(layers) - model.no_weight_decay())
    with pytest.raises(ValueError, match="separate_heads"):
        model(torch.zeros(1, 3, 32, 32), separate_heads=True)
    model.gradient_checkpointing = True
    with pytest.raises(ValueError, match=r"train.gradient_checkpointing.*BatchNorm"):
        model(torch.zeros(1, 3, 32, 32))


def test_the_norm_before_the_head_learns_at_its_rate() -> None:
    model = build_model(ResNetConfig(depth=50, version=2, num_classes=3))
    layers = {name: model.layer_of(name) for name, _ in model.named_parameters()}
    assert layers["norm.weight"] == layers["fc.weight"] == model.num_layers


def test_a_narrow_one_trains() -> None:
    """In a process of its own: torch's convolution ended in a segmentation fault."""
    program = (
        "import torch, vit; model = vit.create_model('resnet18_cifar', width=8, num_classes=2);"
        "model(torch.randn(4, 3, 64, 64)).sum().backward(); print(model.conv1.weight.grad.shape)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "torch.Size([8, 3, 3, 3])\n"), done.stderr
