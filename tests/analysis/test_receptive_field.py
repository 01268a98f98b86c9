"""The effective receptive field where it is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.analysis.models import hugging, own
from vit.analysis.receptive_field import ReceptiveField, effective_receptive_field
from vit.config import ResNetConfig
from vit.figures.receptive_field import plot_receptive_field
from vit.models import ResNet


def silent(model: nn.Module) -> nn.Module:
    """No block looks anywhere: the streams stay the patch embedding."""
    for block in model.blocks:
        for layer in (block.attention.output, block.feedforward.fc2):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


def test_without_attention_a_token_sees_its_patch() -> None:
    found = effective_receptive_field(silent(own()), [torch.randn(2, 3, 16, 24)])
    assert tuple(found.fields.shape) == (2, 16, 24)
    seen = torch.zeros(16, 24, dtype=torch.bool)
    seen[8:, 8:16] = True  # the centre of 2 × 3 patches is the patch in row 1, column 1
    assert bool(((found.fields > 0) == seen).all())
    assert found.centres[0].tolist() == [12, 12]
    assert found.half_area().max() <= 64 / 384 / 2 + 0.05


def test_pixels_that_fill_no_patch_are_left_out() -> None:
    import timm

    model = timm.create_model("vit_tiny_patch16_224", img_size=52, depth=1, embed_dim=24, num_heads=2).eval()
    found = effective_receptive_field(model, [torch.randn(1, 3, 52, 52)])
    assert tuple(found.fields.shape) == (1, 48, 48), "3 × 3 patches of 16"
    assert found.centres[0].tolist() == [24, 24]


def test_the_field_is_the_length_of_the_jacobians_columns() -> None:
    model = silent(own())
    images = torch.randn(200, 3, 16, 24)  # the gradient does not depend on the image, the directions do
    found = effective_receptive_field(model, images.split(50)).fields[0]
    expected = model.embedding.projection.weight.detach().square().sum(dim=(0, 1)).sqrt()
    torch.testing.assert_close(found[8:, 8:16].float(), expected, rtol=0.25, atol=0)


def test_numbers_of_a_field_that_is_equal_everywhere_and_of_a_point() -> None:
    fields = torch.zeros(2, 4, 4, dtype=torch.float64)
    fields[0] = 1
    fields[1, 0, 0] = 1
    result = ReceptiveField(
        fields=fields, layers=["a", "b"], centres=torch.tensor([[2.0, 2.0]] * 2).double(), num_images=1
    )
    near, middle, far = math.sqrt(0.5), math.sqrt(2.5), math.sqrt(4.5)
    assert result.mean_distance().tolist() == pytest.approx([(4 * near + 8 * middle + 4 * far) / 16, far])
    assert result.half_area().tolist() == pytest.approx([8 / 16, 1 / 16])
    assert result.numbers()["uniform_mean_distance"][0] == pytest.approx(result.mean_distance()[0].item())
    first, second, bar, distances = plot_receptive_field(fields, result.mean_distance().tolist(), 1.5).axes
    assert [first.get_title(), second.get_title()] == ["block 1", "block 2"]
    assert bar.get_ylabel() == "part of the greatest"
    assert distances.lines[0].get_ydata().tolist() == pytest.approx(result.mean_distance().tolist())


def test_a_resnet_grows_and_a_model_of_another_library_works() -> None:
    resnet = ResNet(ResNetConfig(depth=18, stem="cifar", num_classes=2, image_size=(32, 32)))
    for module in resnet.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
    found = effective_receptive_field(resnet, [torch.randn(2, 3, 32, 32)])
    assert found.mean_distance()[0] < found.mean_distance()[-1]
    assert (found.fields[0] > 0).sum() == 49, "three 3×3 convolutions: 7 × 7 pixels"
    assert effective_receptive_field(hugging("ViT"), [torch.randn(1, 3, 32, 32)]).fields.shape == (1, 32, 32)


def test_no_images_are_refused() -> None:
    with pytest.raises(ValueError, match="needs at least one"):
        effective_receptive_field(own(), [])
