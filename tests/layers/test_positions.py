"""Positions: closed forms and shifts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vit.config import ViTConfig
from vit.config.vit import PositionKind
from vit.layers.positions import RelativeBias, build_positions, sincos_2d

CPU = torch.device("cpu")


def test_sincos_depends_on_the_offset_only_and_has_norm_half_the_width() -> None:
    gh, gw, width = 5, 7, 24
    table = sincos_2d((gh, gw), width)[0]
    products = (table @ table.T).reshape(gh, gw, gh, gw)
    torch.testing.assert_close(table.square().sum(1), torch.full((gh * gw,), width / 2))
    torch.testing.assert_close(products[1:, 1:, 1:, 1:], products[:-1, :-1, :-1, :-1], atol=1e-4, rtol=0)
    assert products[0, 0, 0, 1] < products[0, 0, 0, 0]
    assert not torch.allclose(products[0, 0, 0, 1], products[0, 0, 2, 0])


def test_sincos_by_hand() -> None:
    table = sincos_2d((2, 3), 8)[0]
    x, y = torch.tensor([0.0, 1, 2, 0, 1, 2]), torch.tensor([0.0, 0, 0, 1, 1, 1])
    rates = torch.tensor([1.0, 1e-4])
    parts = [f(place[:, None] * rates) for place in (x, y) for f in (torch.sin, torch.cos)]
    torch.testing.assert_close(table, torch.cat(parts, dim=1))


def relative(
    grid: tuple[int, int] = (3, 4), depth: int = 2, heads: int = 2, prefix: int = 1, **options: Any
) -> RelativeBias:
    sizes: dict[str, Any] = {"image_size": grid, "patch_size": (1, 1), "width": 8, "depth": depth, "num_heads": heads}
    positions = RelativeBias(ViTConfig(**sizes, positions="relative", num_registers=prefix - 1, **options))
    for table in positions.parameters():
        torch.nn.init.normal_(table)
    return positions


def test_relative_bias_is_a_table_of_offsets() -> None:
    positions = relative()
    bias = positions.biases((3, 4), None)[1]
    assert bias.shape == (1, 2, 13, 13)
    assert (bias[:, :, 0] == 0).all()
    assert (bias[:, :, :, 0] == 0).all()
    patches = bias[0, :, 1:, 1:].reshape(2, 3, 4, 3, 4)
    assert torch.equal(patches[:, 1:, 1:, 1:, 1:], patches[:, :-1, :-1, :-1, :-1])
    assert torch.equal(patches[:, 2, 0, 0, 3], positions.table[1, :, 2 - 0 + 2, 0 - 3 + 3])
    assert patches[0].unique().numel() == 5 * 7


def test_relative_bias_of_kept_patches_and_of_another_grid() -> None:
    positions, kept = relative(), torch.tensor([[0, 3, 7], [1, 2, 11]])
    full, some = positions.biases((3, 4), None)[0][0], positions.biases((3, 4), kept)[0]
    assert some.shape == (2, 2, 4, 4)
    for sample, places in zip(some, kept, strict=True):
        tokens = torch.cat((torch.tensor([0]), places + 1))
        assert torch.equal(sample, full[:, tokens][:, :, tokens])
    assert positions.biases((5, 2), None)[0].shape == (1, 2, 11, 11)


def test_biases_of_prefix_tokens_are_three_numbers() -> None:
    """From them to patches, from patches to them, and between them, of every head of every block."""
    positions, without = relative(prefix=2, relative_prefix=True), relative(prefix=2)
    bias, plain = (each.biases((3, 4), None)[1][0].detach() for each in (positions, without))
    assert positions.prefix_table is not None
    expected = positions.prefix_table[1]  # h 3
    for number, pairs in enumerate((bias[:, :2, 2:], bias[:, 2:, :2], bias[:, :2, :2])):
        assert torch.equal(pairs, expected[:, number, None, None].expand_as(pairs))
    assert float(plain[:, :2].abs().max()) == float(plain[:, :, :2].abs().max()) == 0
    assert torch.equal(bias[:, 2:, 2:].unique(), positions.table[1].unique())


def test_tables_of_blocks_and_of_all_blocks_are_added() -> None:
    shared, both = (relative(relative_tables=kind) for kind in ("shared", "both"))
    assert shared.table.shape == (1, 2, 5, 7)
    assert both.table.shape == (3, 2, 5, 7)
    of_all = shared.biases((3, 4), None)
    assert torch.equal(of_all[0], of_all[1])
    own = relative()
    with torch.no_grad():
        shared.table.copy_(both.table[:1])
        own.table.copy_(both.table[1:])
    for block in range(2):
        expected = own.biases((3, 4), None)[block] + shared.biases((3, 4), None)[block]
        torch.testing.assert_close(both.biases((3, 4), None)[block], expected)


@pytest.mark.parametrize("kind", ["learned_1d", "learned_2d", "sincos_2d", "relative", "rope", "learned_1d_rope"])
def test_every_kind_distinguishes_rows_and_columns_on_any_grid(kind: PositionKind) -> None:
    config = ViTConfig(image_size=(12, 20), patch_size=(4, 4), width=32, depth=2, num_heads=2, positions=kind)
    positions = build_positions(config)
    for parameter in positions.parameters():
        torch.nn.init.normal_(parameter)
    for grid in ((3, 5), (5, 3), (6, 2)):
        count = grid[0] * grid[1]
        added = positions(torch.zeros(1, count, 32), grid)
        biases, rotations = positions.biases(grid, None), positions.rotations(grid, None, CPU)
        told = [added[0], *([] if biases is None else [biases[0][0, 0]])]
        if rotations is not None:
            told.append(rotations[0].cos)
        distinct = max(len({tuple(row) for row in table.tolist()}) for table in told)
        assert distinct == count + (kind == "relative")


@pytest.mark.parametrize("kind", ["learned_1d", "learned_2d"])
def test_prefix_positions(kind: str) -> None:
    small: dict[str, Any] = {
        "image_size": (8, 8),
        "patch_size": (4, 4),
        "width": 8,
        "depth": 1,
        "num_heads": 1,
        "positions": kind,
    }
    for tokens, shape in (({"num_registers": 3}, (1, 1, 8)), ({"distillation_token": True}, (1, 2, 8))):
        prefix = build_positions(ViTConfig(**small, **tokens)).prefix
        assert prefix is not None
        assert prefix.shape == shape
    assert build_positions(ViTConfig(**small, positions_on_prefix=False)).prefix is None
