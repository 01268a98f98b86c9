"""Principal components of the patch embedding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vit.analysis.filters import patch_filters, principal_components
from vit.config import ResNetConfig, ViTConfig
from vit.figures.patch_filters import plot_patch_filters
from vit.models import ResNet, VisionTransformer


def test_two_directions_by_hand() -> None:
    weight = torch.zeros(4, 3, 1, 2)
    weight[0, 0, 0, 0], weight[1, 0, 0, 0] = 3, -3
    weight[2, 2, 0, 1], weight[3, 2, 0, 1] = -1, 1
    filters, explained = principal_components(weight, 28)
    expected = torch.zeros(2, 1, 2, 3, dtype=torch.float64)
    expected[0, 0, 0, 0] = expected[1, 0, 1, 2] = 1
    torch.testing.assert_close(filters, expected)
    torch.testing.assert_close(explained, torch.tensor([0.9, 0.1], dtype=torch.float64))


def test_they_are_those_of_scikit_learn() -> None:
    from sklearn.decomposition import PCA

    weight = torch.randn(40, 3, 4, 4)
    filters, explained = principal_components(weight, 6)
    theirs = PCA(6, svd_solver="full").fit(weight.permute(0, 2, 3, 1).flatten(1).double().numpy())
    products = filters.flatten(1) @ torch.from_numpy(theirs.components_).T
    torch.testing.assert_close(products.abs(), torch.eye(6, dtype=torch.float64), atol=1e-8, rtol=0)
    torch.testing.assert_close(explained, torch.from_numpy(theirs.explained_variance_ratio_))


def test_every_picture_uses_the_whole_range() -> None:
    model = VisionTransformer(ViTConfig(image_size=(8, 8), patch_size=(4, 4), width=48, depth=1, num_heads=2))
    found = patch_filters(model)
    assert (found.layer, tuple(found.filters.shape)) == ("embedding.projection", (28, 4, 4, 3))
    pictures = found.stretched()
    torch.testing.assert_close(pictures.amin(dim=(1, 2, 3)), torch.zeros(28, dtype=torch.float64))
    torch.testing.assert_close(pictures.amax(dim=(1, 2, 3)), torch.ones(28, dtype=torch.float64))
    assert len(plot_patch_filters(pictures).axes) == 28


def test_other_models_and_one_without_pixels() -> None:
    assert patch_filters(ResNet(ResNetConfig(depth=18))).layer == "conv1"
    with pytest.raises(ValueError, match="no convolution of it reads 3 channels"):
        patch_filters(nn.Sequential(nn.Linear(3, 3)))
