"""CKA: by hand, its invariances, in batches against the whole, ViT against ResNet."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.analysis.models import own
from vit.analysis.representations import (
    AlignmentSums,
    centred_without_diagonal,
    gram_matrix,
    representation_similarity,
)
from vit.config import ResNetConfig
from vit.figures.representation_similarity import plot_representation_similarity
from vit.models import ResNet


def alignment(first: Tensor, second: Tensor) -> float:
    sums = AlignmentSums()
    sums.add([gram_matrix(first)], [gram_matrix(second)])
    return float(sums.similarity())


def hsic_by_the_formula(first: Tensor, second: Tensor) -> float:
    """Song et al. 2012 and Nguyen et al. 2021, equation 3, word for word."""
    n = len(first)
    k, m = ((x @ x.T) * (1 - torch.eye(n, dtype=x.dtype)) for x in (first, second))
    one = torch.ones(n, dtype=first.dtype)
    middle = (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
    return float(((k @ m).trace() + middle - 2 / (n - 2) * (one @ k @ m @ one)) / (n * (n - 3)))


def test_four_numbers_by_hand() -> None:
    # x = 0, 0, 1, 1: off its diagonal the Gram matrix has a 1 at (2, 3) and (3, 2) alone, so
    # tr(KK) = 2, 1K1 = 2, 1KK1 = 2 and HSIC = (2 + 4 / 6 - 2) / 4 = 1 / 6; with y = 0, 1, 0, 1: (0 + 4/6 - 1) / 4.
    x = torch.tensor([[0.0], [0.0], [1.0], [1.0]], dtype=torch.float64)
    y = torch.tensor([[0.0], [1.0], [0.0], [1.0]], dtype=torch.float64)
    assert hsic_by_the_formula(x, x) == pytest.approx(1 / 6)
    assert hsic_by_the_formula(x, y) == pytest.approx(-1 / 12)
    assert alignment(x, y) == pytest.approx(-0.5)
    assert alignment(x, x) == pytest.approx(1)


def test_the_estimate_is_the_formula() -> None:
    x, y = torch.randn(9, 5).double() + 3, torch.randn(9, 4).double()
    y = y + x[:, :4]
    expected = hsic_by_the_formula(x, y) / (hsic_by_the_formula(x, x) * hsic_by_the_formula(y, y)) ** 0.5
    assert alignment(x, y) == pytest.approx(expected, rel=1e-9)
    centred = centred_without_diagonal(x @ x.T)
    torch.testing.assert_close(centred.sum(dim=1), torch.zeros(9).double(), atol=1e-9, rtol=0)


def test_a_rotation_a_shift_and_a_scale_change_nothing() -> None:
    x = torch.randn(30, 6).double()
    rotation, _ = torch.linalg.qr(torch.randn(6, 6).double())
    assert alignment(x, 3 * x @ rotation + 5) == pytest.approx(1, abs=1e-12)
    assert alignment(x, x * torch.arange(1, 7)) < 0.99


def test_unrelated_features_are_unbiased_around_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    found = [alignment(*torch.randn(2, 8, 300, generator=generator).double()) for _ in range(400)]
    mean = sum(found) / len(found)
    assert abs(mean) < 0.02, "the biased estimate would be near 1 with 300 features and 8 samples"


def test_batches_approach_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2048, 20, generator=generator).double()
    y = x[:, :10] + 0.5 * torch.randn(2048, 10, generator=generator).double()
    whole, sums = alignment(x, y), AlignmentSums()
    for first, second in zip(x.split(32), y.split(32), strict=True):
        sums.add([gram_matrix(first)], [gram_matrix(second)])
    assert float(sums.similarity()) == pytest.approx(whole, abs=0.02)


def test_batches_count_by_their_images() -> None:
    x, y = torch.randn(12, 3).double(), torch.randn(12, 3).double()
    sums = AlignmentSums()
    for part in (slice(4), slice(4, 12)):
        sums.add([gram_matrix(x[part])], [gram_matrix(y[part])])
    (xy, xx, yy) = (
        4 * hsic_by_the_formula(a[:4], b[:4]) + 8 * hsic_by_the_formula(a[4:], b[4:])
        for a, b in ((x, y), (x, x), (y, y))
    )
    assert float(sums.similarity()) == pytest.approx(xy / (xx * yy) ** 0.5)


def test_batches_must_not_be_sorted_by_class() -> None:
    generator = torch.Generator().manual_seed(0)
    classes = torch.arange(256).div(32, rounding_mode="floor")
    centres = 3 * torch.randn(8, 20, generator=generator).double()  # all that two models agree about
    x, y = (centres[classes] + torch.randn(256, 20, generator=generator).double() for _ in range(2))
    mixed = torch.randperm(256, generator=generator)

    def in_batches(order: Tensor) -> float:
        sums = AlignmentSums()
        for places in order.split(32):
            sums.add([gram_matrix(x[places])], [gram_matrix(y[places])])
        return float(sums.similarity())

    whole = alignment(x, y)
    assert in_batches(mixed) == pytest.approx(whole, abs=0.03)
    assert abs(in_batches(torch.arange(256))) < 0.1 < whole


def test_a_model_is_like_itself_and_a_resnet_has_its_own_layers() -> None:
    vit, resnet = own(depth=3), ResNet(ResNetConfig(depth=18, stem="cifar", num_classes=3, image_size=(16, 24)))
    images = torch.randn(11, 3, 16, 24)
    pairs = [(part, part) for part in images.split(4)]
    same = representation_similarity(vit, vit, pairs)
    torch.testing.assert_close(same.similarity.diagonal(), torch.ones(3).double())
    torch.testing.assert_close(same.similarity, same.similarity.T)
    assert (same.num_images, same.num_batches, same.num_left_out) == (8, 2, 3)
    other = representation_similarity(vit, resnet, pairs, exact=True)
    assert tuple(other.similarity.shape) == (3, 8)
    assert other.second_layers[0] == "layer1.0"
    assert (other.num_images, other.num_batches, other.num_left_out) == (11, 1, 0)
    at_once = representation_similarity(vit, resnet, [(images, images)])
    torch.testing.assert_close(other.similarity, at_once.similarity, atol=1e-5, rtol=0)
    assert not any(module._forward_hooks for module in vit.modules())
    assert np.ma.asarray(
        plot_representation_similarity(other.similarity, "ViT", "ResNet").axes[0].images[0].get_array()
    ).shape == (
        3,
        8,
    )


def test_too_few_images_and_models_without_blocks_are_refused() -> None:
    model, images = own(), torch.randn(3, 3, 16, 24)
    with pytest.raises(ValueError, match="no batch has 4"):
        representation_similarity(model, model, [(images, images)])
    with pytest.raises(ValueError, match="3 is not valid: the unbiased estimate needs at least 4"):
        representation_similarity(model, model, [(images, images)], exact=True)
    linear = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="Linear is not valid: its blocks cannot be read"):
        representation_similarity(linear, linear, [(images, images)])


def test_hooks_come_off_when_the_model_fails() -> None:
    model = own()
    with pytest.raises(ValueError, match="must divide"):
        representation_similarity(model, model, [(torch.randn(4, 3, 17, 24),) * 2])
    assert not any(module._forward_hooks for module in model.modules())
