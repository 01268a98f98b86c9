"""Rotary positions: by hand, against timm's, on any grid, and of patches that patch dropout kept."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from timm.layers.pos_embed_sincos import RotaryEmbeddingCat, RotaryEmbeddingDinoV3, RotaryEmbeddingMixed
from torch import Tensor

from vit.config import ViTConfig
from vit.layers.rotary import Rotary, Rotation, rotation_by
from vit.models import VisionTransformer

CPU = torch.device("cpu")
BASE: dict[str, Any] = {"image_size": (12, 20), "patch_size": (4, 4), "width": 32, "num_heads": 2, "depth": 3}


def rotary(**options: Any) -> Rotary:
    found = VisionTransformer(ViTConfig(**{**BASE, "positions": "rope"} | options)).positions.rotary
    assert found is not None
    return found


def rotations(grid: tuple[int, int], kept: Tensor | None = None, **options: Any) -> tuple[Rotation, ...]:
    torch.manual_seed(0)
    with torch.no_grad():
        return rotary(**options).rotations(grid, kept, CPU)


def angles(model: Rotary, grid: tuple[int, int]) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return model.angles(grid, None, CPU)


def test_every_pair_of_channels_is_multiplied_as_a_complex_number() -> None:
    """In float64, one angle per image, head, token and pair; the prefix stays."""
    by, vectors = torch.randn(2, 3, 5, 4, dtype=torch.float64), torch.randn(2, 3, 7, 8, dtype=torch.float64)
    pairs = torch.complex(*vectors.chunk(2, dim=-1))
    pairs[:, :, 2:] *= torch.polar(torch.ones_like(by), by)
    found = rotation_by(by, num_prefix=2)(vectors)
    torch.testing.assert_close(found, torch.cat((pairs.real, pairs.imag), dim=-1), rtol=0, atol=1e-6)
    assert torch.equal(found[:, :, :2], vectors[:, :, :2])


def test_scores_depend_on_the_offset_only() -> None:
    gh, gw, d, prefix = 4, 5, 16, 1
    rotate = rotations((gh, gw))[0]
    query, key = torch.randn(d), torch.randn(d)
    count = prefix + gh * gw
    q, k = (rotate(v.expand(1, 1, count, d))[0, 0] for v in (query, key))
    assert torch.equal(q[:prefix], query.expand(prefix, d))
    torch.testing.assert_close(q.norm(dim=1), query.norm().expand(count))
    scores = (q[prefix:] @ k[prefix:].T).reshape(gh, gw, gh, gw)
    torch.testing.assert_close(scores[1:, 1:, 1:, 1:], scores[:-1, :-1, :-1, :-1], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(scores[0, 0, 0, 1], scores[0, 0, 1, 0])
    assert not torch.allclose(scores[0, 0, 0, 1], scores[0, 1, 0, 0])


@pytest.mark.parametrize("options", [{}, {"rope_mixed": True}], ids=["axial", "mixed"])
def test_kept_patches_are_rotated_as_among_all(options: dict[str, Any]) -> None:
    kept = torch.tensor([[0, 3], [1, 5]])
    given = options | {"class_token": False, "pooling": "gap"}
    for full, some in zip(rotations((2, 3), **given), rotations((2, 3), kept, **given), strict=True):
        vectors = torch.randn(2, 2, 6, 16)
        left = torch.stack([v[:, k] for v, k in zip(vectors, kept, strict=True)])
        expected = torch.stack([v[:, k] for v, k in zip(full(vectors), kept, strict=True)])
        torch.testing.assert_close(some(left), expected)


def timm_angles(table: Tensor, *, interleaved: bool) -> Tensor:
    """Sines and cosines (n, 2, d/2) of timm's table of sines beside cosines, each angle twice."""
    halves = torch.stack(table.chunk(2, dim=-1), dim=-2)
    return halves[..., ::2] if interleaved else halves[..., : halves.shape[-1] // 2]


@pytest.mark.parametrize("grid", [(3, 5), (6, 4)])
@pytest.mark.parametrize(
    ("options", "theirs"),
    [
        ({}, {"temperature": 100.0}),
        ({"rope_temperature": 1e4, "rope_grid": (7, 9)}, {"temperature": 1e4, "ref_feat_shape": [7, 9]}),
        (
            {"rope_temperature": 1e4, "rope_grid": (3, 5), "rope_offset": 1.0},
            {"temperature": 1e4, "ref_feat_shape": [3, 5], "grid_offset": 1.0},
        ),
        ({"rope_columns_first": True}, {"temperature": 100.0, "grid_indexing": "xy"}),
    ],
    ids=["plain", "scaled", "offset", "columns first"],
)
def test_axial_angles_are_timms(grid: tuple[int, int], options: dict[str, Any], theirs: dict[str, Any]) -> None:
    table = RotaryEmbeddingCat(16, in_pixels=False, feat_shape=list(grid), **theirs).get_embed()
    assert len(rotations(grid, **options)) == 3, "one for every block"
    (found,) = angles(rotary(**options), grid)
    expected = timm_angles(table, interleaved=True)
    torch.testing.assert_close(torch.stack((found.sin(), found.cos()), dim=1), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("grid", [(3, 5), (1, 4)])
def test_centred_angles_are_dinov3s(grid: tuple[int, int]) -> None:
    table = RotaryEmbeddingDinoV3(16, temperature=100.0, feat_shape=list(grid)).get_embed()
    (found,) = angles(rotary(rope_coordinates="centred"), grid)
    expected = timm_angles(table, interleaved=False)
    torch.testing.assert_close(torch.stack((found.sin(), found.cos()), dim=1), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("indexing", ["ij", "xy"])
def test_mixed_angles_are_timms(indexing: str) -> None:
    theirs = RotaryEmbeddingMixed(32, depth=3, num_heads=2, feat_shape=[3, 5], grid_indexing=indexing)
    ours = rotary(rope_mixed=True, rope_columns_first=indexing == "xy")
    assert ours.frequencies is not None
    assert ours.frequencies.shape == theirs.freqs.shape
    with torch.no_grad():
        ours.frequencies.copy_(theirs.freqs)
        found = torch.stack([torch.stack((each.sin(), each.cos()), dim=2) for each in angles(ours, (3, 5))])
        expected = timm_angles(theirs.get_embed(), interleaved=True)  # l h n 2 d/2
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_mixed_frequencies_start_as_axial_ones_turned_by_a_random_angle_for_each_head() -> None:
    frequencies = rotary(rope_mixed=True, rope_temperature=10.0).frequencies
    assert frequencies is not None
    rates = 10.0 ** -(torch.arange(4) / 4)
    torch.testing.assert_close(frequencies.square().sum(dim=0), (rates**2).repeat(2).expand(3, 2, 8))
    first, second = frequencies.chunk(2, dim=-1)
    torch.testing.assert_close((first * second).sum(dim=0), torch.zeros(3, 2, 4), atol=1e-6, rtol=0)
    turns = torch.atan2(first[0, ..., 0], first[1, ..., 0])
    assert len({round(turn, 4) for turn in turns.flatten().tolist()}) == 6


def test_every_head_and_block_rotates_by_its_own_frequencies() -> None:
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(**BASE, positions="rope", rope_mixed=True, num_classes=3))
    model(torch.randn(2, 3, 12, 20)).sum().backward()
    gradient = model.get_parameter("positions.rotary.frequencies").grad
    assert gradient is not None
    assert gradient.shape == (2, 3, 2, 8)
    assert (gradient.abs().sum(dim=(0, 3)) > 0).all()


def test_centred_coordinates_do_not_depend_on_the_number_of_patches_at_the_edges() -> None:
    for size in (4, 40):
        (found,) = angles(rotary(rope_coordinates="centred"), (size, size))
        assert found[0, 0].item() == pytest.approx(2 * math.pi * (1 / size - 1), abs=1e-5)
