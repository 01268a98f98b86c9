"""Patches: index-coded pixels, the equivalent convolution, and the stem."""

from __future__ import annotations

import pytest
import torch
from einops import rearrange
from torch.nn.functional import conv2d, gelu

from vit.layers.patches import PatchEmbedding


def test_a_patch_is_its_pixels_row_by_row() -> None:
    images = torch.arange(3 * 4 * 6, dtype=torch.float32).reshape(1, 3, 4, 6)
    embedding = PatchEmbedding(3 * 2 * 3, (2, 3), bias=False)
    with torch.no_grad():
        embedding.projection.weight.copy_(torch.eye(18).reshape(18, 3, 2, 3))
    patches = embedding(images)
    assert patches.shape == (1, 4, 18)
    for index, (row, column) in enumerate(((0, 0), (0, 3), (2, 0), (2, 3))):
        assert torch.equal(patches[0, index], images[0, :, row : row + 2, column : column + 3].flatten())
    back = rearrange(patches, "b (gh gw) (k ph pw) -> b k (gh ph) (gw pw)", gh=2, k=3, ph=2)
    assert torch.equal(back, images)


def test_equal_to_the_convolution_forward_and_gradient() -> None:
    embedding, images = PatchEmbedding(5, (4, 2)), torch.randn(2, 3, 8, 6)
    weight = embedding.projection.weight.detach().clone().requires_grad_()
    expected = rearrange(conv2d(images, weight, embedding.projection.bias, stride=(4, 2)), "b c gh gw -> b (gh gw) c")
    out = embedding(images)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(embedding.projection.weight.grad, weight.grad, atol=1e-4, rtol=1e-4)


def test_stem_sees_across_patches_but_not_across_images() -> None:
    embedding, images = PatchEmbedding(5, (8, 16), stem="resnet"), torch.randn(2, 3, 32, 48)
    out = embedding(images)
    assert out.shape == (2, 12, 5)
    changed = images.clone()
    changed[0, :, 7, 20] += 5  # in patch 1, at the border of patch 4
    moved = (embedding(changed) - out).abs().amax(dim=2) > 1e-6
    assert moved[0, 1]
    assert moved[0, 4]
    assert not moved[1].any()


@pytest.mark.parametrize("patch_size", [(4, 4), (8, 4), (2, 8)])
def test_the_conv_stem_is_two_convolutions_whose_windows_overlap(patch_size: tuple[int, int]) -> None:
    embedding = PatchEmbedding(10, patch_size, stem="conv")
    images = torch.rand(2, 3, 24, 16)
    weight, bias = embedding.stem.parameters()
    sh, sw = (max(2, side // 2) for side in patch_size)
    hidden = gelu(conv2d(images, weight, bias, stride=(sh, sw), padding=(sh - 1, sw - 1)))
    projection, left = embedding.projection, (patch_size[0] // sh, patch_size[1] // sw)
    assert projection.weight.shape == (10, 5, *(2 * stride - 1 for stride in left))
    padding = (left[0] - 1, left[1] - 1)
    expected = conv2d(hidden, projection.weight, projection.bias, stride=left, padding=padding)
    torch.testing.assert_close(embedding(images), rearrange(expected, "b c gh gw -> b (gh gw) c"))
    assert embedding.grid_size(images) == (24 // patch_size[0], 16 // patch_size[1])
    images.requires_grad_()
    (seen,) = torch.autograd.grad(embedding(images)[0, 5].sum(), images)  # second row, second column
    for axes, patch in zip(((0, 2), (0, 1)), patch_size, strict=True):
        assert len(seen[0].abs().sum(dim=axes).nonzero()) == 2 * patch - 1
    assert not seen[1].any()


def test_a_size_that_the_patch_does_not_divide() -> None:
    embedding = PatchEmbedding(5, (4, 4))
    assert embedding.grid_size(torch.zeros(1, 3, 8, 12)) == (2, 3)
    message = r"model.image_size: \(8, 11\) is not valid: the patch width 4 must divide.*nearest: 8 or 12"
    with pytest.raises(ValueError, match=message):
        embedding.grid_size(torch.zeros(1, 3, 8, 11))
    with pytest.raises(ValueError, match=r"patch height 4.*nearest: 4 or 8"):
        embedding.grid_size(torch.zeros(1, 3, 3, 8))
