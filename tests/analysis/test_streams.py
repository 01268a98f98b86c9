"""Skip against branch, and cosines of tokens, where they are known; a probe by layer; heads taken out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.analysis.models import hugging, own, timm_model, torchvision_model
from vit.analysis.streams import residual_streams
from vit.config import ResNetConfig
from vit.figures.residual_streams import plot_residual_streams
from vit.models import ResNet


@pytest.mark.parametrize("second", [0.0, 5.0])
def test_branches_that_add_known_vectors(second: float) -> None:
    """The same value in each of 16 channels."""
    model = own(depth=1)
    block: Any = model.blocks[0]
    for layer, value in ((block.attention.output, 3.0), (block.feedforward.fc2, second)):
        nn.init.zeros_(layer.weight)
        nn.init.constant_(layer.bias, value)
    images = torch.randn(2, 3, 16, 24)
    before: list[torch.Tensor] = []
    with torch.no_grad():
        handle = block.register_forward_pre_hook(lambda _, args: before.append(args[0]))
        model(images)
    handle.remove()
    found = residual_streams(model, [images])
    for branch, (skip, value) in enumerate(((before[0], 3.0), (before[0] + 3, second))):
        expected = skip.norm(dim=-1) / (value * math.sqrt(16))  # infinite where nothing is added
        assert found.class_ratio[0, branch] == pytest.approx(float(expected[:, 0].mean()), rel=1e-5)
        assert found.patch_ratio[0, branch] == pytest.approx(float(expected[:, 1:].mean()), rel=1e-5)


def test_cosines_by_pairs() -> None:
    model = own(num_registers=1)
    images = torch.randn(3, 3, 16, 24)
    outputs: list[torch.Tensor] = []
    handle = model.blocks[1].register_forward_hook(lambda _module, _args, output: outputs.append(output))
    with torch.no_grad():
        model(images)
    handle.remove()
    units = nn.functional.normalize(outputs[0].double(), dim=-1)
    cosines = units @ units.mT
    found = residual_streams(model, images.split(2))
    assert found.class_to_patches[1] == pytest.approx(float(cosines[:, 0, 2:].mean()))
    others = ~torch.eye(6, dtype=torch.bool)
    assert found.between_patches[1] == pytest.approx(float(cosines[:, 2:, 2:][:, others].mean()))
    assert found.num_images == 3


@pytest.mark.parametrize(
    "build",
    [
        lambda: timm_model("vit_tiny_patch16_224", img_size=32),
        torchvision_model,
        lambda: hugging("ViT"),
        lambda: hugging("CLIPVision"),
        lambda: hugging("SiglipVision"),
        lambda: hugging("Dinov2"),
    ],
)
def test_models_of_other_libraries(build: Callable[..., Any]) -> None:
    found = residual_streams(build(), [torch.randn(2, 3, 32, 32)])
    assert bool(found.patch_ratio.isfinite().all())
    assert found.numbers()["num_images"] == 2


def test_without_a_class_token_its_numbers_are_left_out_and_others_are_refused() -> None:
    found = residual_streams(own(pooling="gap", class_token=False), [torch.randn(2, 3, 16, 24)])
    assert bool(found.class_ratio.isnan().all())
    first = plot_residual_streams(
        found.patch_ratio, found.class_ratio, found.class_to_patches, found.between_patches
    ).axes[0]
    assert [line.get_label() for line in first.lines] == ["patches"]
    with pytest.raises(ValueError, match=r"BasicBlock.* is not known to add attention and after it feed-forward"):
        residual_streams(ResNet(ResNetConfig(depth=18)), [])
    with pytest.raises(ValueError, match="needs at least one"):
        residual_streams(own(), [])
