"""The effective receptive field where it is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.analysis.models import hugging, own
from vit.analysis.receptive_field import ReceptiveField, _half_area, effective_receptive_field
from vit.config import ResNetConfig
from vit.figures.receptive_field import plot_receptive_field
from vit.models import ResNet, VisionTransformer


def silent(model: Any) -> Any:
    """No block looks anywhere: the streams stay the patch embedding."""
    for block in model.blocks:
        for layer in (block.attention.output, block.feedforward.fc2):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


def test_without_attention_a_token_sees_its_patch() -> None:
    model = silent(own(image_size=(16, 48), patch_size=(8, 12)))
    found = effective_receptive_field(model, [torch.randn(2, 3, 16, 48)])
    assert tuple(found.fields.shape) == (2, 16, 48)
    seen = torch.zeros(16, 48, dtype=torch.bool)
    seen[8:, 24:36] = True  # the centre of 2 × 4 patches is the patch in row 1, column 2
    assert bool(((found.fields > 0) == seen).all())
    assert found.centres[0].tolist() == [12, 30]
    assert found.half_area().max() <= 96 / 768 / 2 + 0.05


def test_pixels_that_fill_no_patch_are_left_out() -> None:
    import timm

    model = timm.create_model("vit_tiny_patch16_224", img_size=52, depth=1, embed_dim=24, num_heads=2).eval()
    found = effective_receptive_field(model, [torch.randn(1, 3, 52, 52)])
    assert tuple(found.fields.shape) == (1, 48, 48), "3 × 3 patches of 16"
    assert found.centres[0].tolist() == [24, 24]


def test_all_directions_give_the_length_of_the_jacobians_columns() -> None:
    model = silent(own())
    found = effective_receptive_field(model, [torch.randn(3, 3, 16, 24)], directions=None)
    expected = model.embedding.projection.weight.detach().square().sum(dim=(0, 1)).sqrt()
    torch.testing.assert_close(found.fields[0, 8:, 8:16].float(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(found.half_area_interval(), found.half_area()[:, None].expand(-1, 2))


def exact_field(model: VisionTransformer, images: torch.Tensor) -> torch.Tensor:
    """H W, of the last block, from torch's own Jacobian of the central token by each image."""
    outputs: list[torch.Tensor] = []
    handle = model.blocks[-1].register_forward_hook(lambda *call: outputs.append(call[2]))

    def centre(image: torch.Tensor) -> torch.Tensor:
        model(image[None])
        patches = model.config.grid_size
        return outputs[-1][0, -(patches[0] * patches[1]) :][patches[0] // 2 * patches[1] + patches[1] // 2]

    jacobians = [torch.autograd.functional.jacobian(centre, image) for image in images]
    handle.remove()
    return torch.stack(jacobians).double().square().sum(dim=(1, 2)).mean(dim=0).sqrt()


def small_model(size: int = 32) -> tuple[VisionTransformer, torch.Tensor]:
    """A model whose tokens attend to others, and images."""
    torch.manual_seed(5)
    model = own(image_size=(size, size), patch_size=(4, 4), width=32, depth=2)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.add_(0.1 * torch.randn_like(parameter))
    return model, torch.randn(8, 3, size, size)


def test_half_area_is_that_of_the_exact_jacobian() -> None:
    """In the mean of many seeds, to 1 %. Of the field along one direction an image, it would be 13 to 18 % less."""
    model, images = small_model()
    exact = effective_receptive_field(model, [images], directions=None)
    brightest = exact_field(model, images).flatten().sort(descending=True).values.numpy()
    held = np.concatenate([[0], brightest.cumsum() / brightest.sum()])
    expected = np.interp(0.5, held, np.arange(len(held))) / len(brightest)
    assert float(exact.half_area()[-1]) == pytest.approx(expected, rel=1e-4)

    drawn = [effective_receptive_field(model, [images], seed=seed) for seed in range(60)]
    ratios = torch.stack([each.half_area() for each in drawn]) / exact.half_area()
    torch.testing.assert_close(ratios.mean(dim=0), torch.ones(2).double(), rtol=0, atol=0.01)
    low, high = torch.stack([each.half_area_interval() for each in drawn]).unbind(dim=2)
    covered = ((low <= exact.half_area()) & (exact.half_area() <= high)).double().mean(dim=0)
    assert float(covered.min()) > 0.85
    assert float(((high - low) / exact.half_area()).mean()) < 0.2
    distances = torch.stack([each.mean_distance() for each in drawn]) / exact.mean_distance()
    torch.testing.assert_close(distances.mean(dim=0), torch.ones(2).double(), rtol=0, atol=0.003)
    single = torch.stack([_half_area(each.squares[0].sqrt()) for each in drawn]) / exact.half_area()
    assert float(single.mean(dim=0).max()) < 0.92, "the correction is needed"


def test_one_direction_has_no_error_and_is_refused() -> None:
    with pytest.raises(ValueError, match="directions: 1 is not valid: it must be at least 2, or None"):
        effective_receptive_field(own(), [torch.randn(1, 3, 16, 24)], directions=1)


def test_numbers_of_a_field_that_is_equal_everywhere_and_of_a_point() -> None:
    fields = torch.zeros(2, 4, 4, dtype=torch.float64)
    fields[0] = 1
    fields[1, 0, 0] = 1
    result = ReceptiveField(
        squares=fields[None], layers=["a", "b"], centres=torch.tensor([[2.0, 2.0]] * 2).double(), num_images=1
    )
    near, middle, far = math.sqrt(0.5), math.sqrt(2.5), math.sqrt(4.5)
    assert result.mean_distance().tolist() == pytest.approx([(4 * near + 8 * middle + 4 * far) / 16, far])
    assert result.half_area().tolist() == pytest.approx([8 / 16, 0.5 / 16])
    assert result.numbers()["uniform_mean_distance"][0] == pytest.approx(result.mean_distance()[0].item())
    first, second, bar, distances = plot_receptive_field(fields, result.mean_distance().tolist(), 1.5).axes
    assert [first.get_title(), second.get_title()] == ["block 1", "block 2"]
    assert bar.get_ylabel() == "gradient / its maximum"
    assert np.asarray(distances.lines[0].get_ydata()).tolist() == pytest.approx(result.mean_distance().tolist())


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
