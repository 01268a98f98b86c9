"""The convolutions of residual blocks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vit.layers import residual
from vit.layers.residual import convolution


def output_and_gradients(module: nn.Module, images: Tensor) -> list[Tensor]:
    images = images.clone().requires_grad_()
    output = module(images)
    gradients = torch.autograd.grad(output.square().sum(), [images, module.get_parameter("weight")])
    return [output.detach(), *gradients]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(1, 1), (1, 2), (2, 2), (4, 1), (5, 3)])
@pytest.mark.parametrize("groups", [1, 2])
def test_trained_on_small_maps_it_is_the_convolution(
    size: tuple[int, int], stride: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residual, "MIN_WEIGHTS_OF_MATRIX_PRODUCT", 0)
    ours = convolution(6, 4, 3, stride, groups).double()
    plain = nn.Conv2d(6, 4, 3, stride, 1, groups=groups, bias=False, dtype=torch.float64)
    plain.load_state_dict(ours.state_dict())
    images = torch.randn(3, 6, *size, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    pairs = zip(output_and_gradients(ours, images), output_and_gradients(plain, images), strict=True)
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)


def test_only_small_maps_and_large_filters_in_training_are_a_matrix_product(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = nn.Conv2d._conv_forward

    def counted(self: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        calls.append(1)
        return original(self, x, weight, bias)

    monkeypatch.setattr(nn.Conv2d, "_conv_forward", counted)
    layer = convolution(384, 384, 3)
    layer(torch.randn(3, 384, 2, 2))
    assert len(calls) == 0
    layer(torch.randn(3, 384, 3, 2))
    assert len(calls) == 1
    layer.eval()(torch.randn(3, 384, 2, 2))
    assert len(calls) == 2
    convolution(192, 192, 3)(torch.randn(3, 192, 2, 2))
    assert len(calls) == 3
