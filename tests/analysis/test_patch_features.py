"""Components and likeness of patches against data made for it, and models of every library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.analysis.models import hugging, own, timm_model, torchvision_model
from vit.analysis.patch_features import patch_components, patch_similarity, patches_after
from vit.config import ResNetConfig
from vit.models import ResNet

IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """Named as a Transformer's block; adds nothing."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens


class Given(nn.Module):
    """A model whose patches after its one block are given, `b n c`, behind a class token."""

    def __init__(self, patches: Tensor) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 1, 8, stride=8)
        self.class_token = nn.Parameter(torch.ones(1, 1, patches.shape[2]))
        self.block = Block()
        self.patches = patches

    def forward(self, images: Tensor) -> Tensor:
        return self.block(torch.cat((self.class_token.expand(len(images), -1, -1), self.patches), dim=1))[:, 0]


def object_in_the_middle() -> Tensor:
    """Two images of 4×4 patches: the four in the middle, of two kinds, differ most from all others. 2 16 12."""
    torch.manual_seed(1)
    background, thing, part = (torch.randn(12) for _ in range(3))
    patches = background.repeat(2, 4, 4, 1) + 0.01 * torch.randn(2, 4, 4, 12)
    patches[:, 1:3, 1:3] = 4 * thing
    patches[:, 1:3, 1] += part
    return patches.flatten(1, 2)


def test_the_first_component_finds_the_object_and_the_next_its_parts() -> None:
    found = patch_components(Given(object_in_the_middle()), torch.zeros(2, 3, 32, 32))
    expected = torch.zeros(2, 4, 4, dtype=torch.bool)
    expected[:, 1:3, 1:3] = True
    assert torch.equal(found.foreground, expected)
    assert float(found.explained[0]) > 0.9
    assert float(found.foreground_explained[0]) == pytest.approx(1, abs=1e-3), "two kinds of part are one component"
    left, right = found.foreground_scores[:, 1:3, 1, 0], found.foreground_scores[:, 1:3, 2, 0]
    assert torch.allclose(left, left[0, 0].expand(2, 2))
    assert torch.allclose(right, -left)
    assert bool(found.foreground_scores[~expected].isnan().all())


def test_scores_are_those_of_the_singular_vectors() -> None:
    model = own(image_size=(32, 32))
    found = patch_components(model, IMAGES)
    tokens, layer = patches_after(model, IMAGES)
    assert layer == found.layer == "blocks.1"
    rows = nn.functional.layer_norm(tokens, tokens.shape[-1:]).flatten(0, 2)
    left, values, _ = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)
    torch.testing.assert_close(found.scores.flatten(0, 2).abs(), (left * values)[:, :3].abs())
    torch.testing.assert_close(found.explained, values[:3].square() / values.square().sum())


def test_a_patch_is_like_its_equals() -> None:
    patches = object_in_the_middle()
    found = patch_similarity(Given(patches), torch.zeros(2, 3, 32, 32))
    assert found.query == (2, 2)
    units = nn.functional.normalize(patches.double(), dim=-1)
    torch.testing.assert_close(found.similarity, torch.einsum("bnc,bc->bn", units, units[:, 10]).view(2, 4, 4))
    assert float(found.similarity[0, 1, 2]) == pytest.approx(1)
    corner = patch_similarity(Given(patches), torch.zeros(2, 3, 32, 32), query=(0, 0))
    assert float(corner.similarity[1, 0, 0]) == pytest.approx(1)
    assert float(corner.similarity[1, 1, 1]) < 0.9


def test_the_patch_asked_for_is_in_that_row_and_column() -> None:
    """Of 4 × 3 patches, (1, 0) is the fourth one, and (2, 1) stands in the middle."""
    patches = torch.randn(2, 12, 8, generator=torch.Generator().manual_seed(0))
    units = nn.functional.normalize(patches.double(), dim=-1)
    for query, place in (((1, 0), 3), (None, 7)):
        found = patch_similarity(Given(patches), torch.zeros(2, 3, 32, 24), query=query)
        assert found.query == (query or (2, 1))
        expected = torch.einsum("bnc,bc->bn", units, units[:, place])
        torch.testing.assert_close(found.similarity, expected.view(2, 4, 3))


@pytest.mark.parametrize(
    ("build", "grid"),
    [
        (lambda: own(image_size=(32, 32), num_registers=2), (4, 4)),
        (lambda: timm_model("vit_tiny_patch16_224", img_size=32), (2, 2)),
        (torchvision_model, (4, 4)),
        (lambda: hugging("Dinov2WithRegisters"), (4, 4)),
        (lambda: ResNet(ResNetConfig(depth=18)), (1, 1)),
    ],
)
def test_models_of_every_library(build: Callable[[], Any], grid: tuple[int, int]) -> None:
    found = patch_components(build(), IMAGES)
    assert found.scores.shape == (3, *grid, 3)
    assert bool(found.scores.isfinite().all())
    assert patch_similarity(build(), IMAGES).similarity.shape == (3, *grid)


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"query: \(4, 0\) is not valid: .* \(0, 0\) to \(3, 3\)"):
        patch_similarity(own(image_size=(32, 32)), IMAGES, query=(4, 0))
    with pytest.raises(ValueError, match="block: 2 is not valid: VisionTransformer has the blocks 0 to 1"):
        patch_components(own(image_size=(32, 32)), IMAGES, block=2)
