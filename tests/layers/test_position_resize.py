"""Learned positions on another grid: hand values, other libraries' numbers, thin grids, compiled."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from timm.layers import resample_abs_pos_embed, resize_rel_pos_bias_table

from vit.config import PositionResize, ViTConfig
from vit.layers.position_resize import resize_grid, resize_offsets

GRID_WAYS = tuple(way for way in get_args(PositionResize) if way != "geometric")


@pytest.mark.filterwarnings("ignore::UserWarning")  # in timm's interpolator
@pytest.mark.parametrize("new", [(24, 24), (7, 7), (14, 21), (20, 9), (1, 3), (32, 32)])
def test_geometric_resize_equals_timm(new: tuple[int, int]) -> None:
    old = (14, 14)
    table = torch.randn(2, 3, 27, 27)  # l h dr dc
    sides = [2 * side - 1 for side in new]
    resized = resize_offsets(table, new, "geometric")
    assert resized.shape[2:] == tuple(sides)
    for ours, theirs in zip(resized, table, strict=True):
        shape = (sides[0] * sides[1], 3)
        flat = resize_rel_pos_bias_table(theirs.flatten(1).T, new, shape, old)
        torch.testing.assert_close(ours.flatten(1).T, flat, atol=1e-5, rtol=0)
    assert resize_offsets(table, old, "geometric") is table


def test_geometric_is_no_way_for_a_grid() -> None:
    with pytest.raises(ValueError, match="'geometric' is not valid for a grid"):
        resize_grid(torch.randn(1, 4, 1), (2, 2), (3, 3), "geometric")
    with pytest.raises(ValueError, match=r"only model\.positions 'relative' are resized so"):
        ViTConfig(position_resize="geometric")


def test_bilinear_resize_by_hand() -> None:
    """Corners stay, and a row halfway between two is their mean."""
    grid = torch.tensor([0.0, 2, 4, 6]).reshape(1, 4, 1)
    between = resize_grid(grid, (2, 2), (3, 2), "bilinear_corners").flatten()
    torch.testing.assert_close(between, torch.tensor([0.0, 2, 2, 4, 4, 6]))


@pytest.mark.parametrize("new", [(14, 14), (7, 7), (10, 18), (20, 9), (28, 28)])
def test_resize_equals_timm(new: tuple[int, int]) -> None:
    grid = torch.randn(1, 196, 8)
    expected = resample_abs_pos_embed(grid, new_size=list(new), old_size=[14, 14], num_prefix_tokens=0)
    torch.testing.assert_close(resize_grid(grid, (14, 14), new), expected)


@pytest.mark.parametrize("how", GRID_WAYS)
def test_resize_keeps_equal_grids_constants_and_the_order_of_axes(how: PositionResize) -> None:
    grid = torch.randn(1, 15, 4)
    assert resize_grid(grid, (3, 5), (3, 5), how) is grid
    constant = torch.ones(1, 15, 4)
    torch.testing.assert_close(resize_grid(constant, (3, 5), (7, 4), how), torch.ones(1, 28, 4))
    by_row = torch.arange(3.0).repeat_interleave(5)[None, :, None]
    wide = resize_grid(by_row, (3, 5), (3, 10), how).reshape(3, 10)
    expected = torch.arange(3.0)[:, None]
    if how == "bicubic_offset":  # its rows move a little too
        expected = wide[:, :1]
    if how.endswith("_square"):
        expected = resize_grid(by_row, (3, 5), (10, 10), how).reshape(10, 10)[:3, :1]
        assert expected.max() < 1.5, "the rows at the end are cut off"
    torch.testing.assert_close(wide, expected.expand(3, 10), atol=1e-5, rtol=0)


@pytest.mark.parametrize("how", GRID_WAYS)
@pytest.mark.parametrize("new", [(5, 1), (5, 2), (1, 5), (1, 1), (2, 7)])
def test_resize_to_thin_grids_equals_its_transpose(new: tuple[int, int], how: PositionResize) -> None:
    """torch 2.15 gives five equal rows for the first of these."""
    grid = torch.randn(1, 3 * 4, 2)
    turned = grid.reshape(1, 3, 4, 2).transpose(1, 2).reshape(1, 12, 2)
    expected = resize_grid(turned, (4, 3), new[::-1], how).reshape(1, new[1], new[0], 2).transpose(1, 2)
    torch.testing.assert_close(resize_grid(grid, (3, 4), new, how).reshape(1, *new, 2), expected)
    assert resize_grid(grid, (3, 4), new, how)[0, :, 0].unique().numel() == new[0] * new[1]


@pytest.mark.parametrize("way", GRID_WAYS)
def test_a_compiled_model_learns_from_grids_of_any_size(way: PositionResize) -> None:
    """As with images that grow, whose sizes the compiler leaves open from the second one on."""
    torch.compiler.reset()

    def weighted(grid: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
        new = patches.shape[0], patches.shape[1]
        return (resize_grid(grid, (4, 3), new, way) * patches.flatten(0, 1)).sum()

    compiled = torch.compile(weighted, backend="aot_eager", dynamic=True, fullgraph=True)
    grid = torch.randn(1, 12, 5, requires_grad=True)
    for size in ((5, 6), (2, 7), (9, 9)):
        patches = torch.randn(*size, 5)
        found, expected = compiled(grid, patches), weighted(grid, patches)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(each, grid)[0] for each in (found, expected)))
