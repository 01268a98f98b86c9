"""Learned positions resized to another grid of patches, in the way of the library that trained them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import interpolate

from vit.compiling import compiles_here
from vit.config import Grid, PositionResize

RESIZE_OFFSET = 0.1
"""Patches by which DINO's scale factors exceed the grid, so that rounding never makes it smaller."""


def resize_grid(grid: Tensor, old: Grid, new: Grid, how: PositionResize = "bicubic_antialiased") -> Tensor:
    """`1 (gh gw) c` from the grid `old` to the grid `new`; unchanged for the same grid.

    `how`, and its source: `bicubic_antialiased`, `timm.layers.resample_abs_pos_embed`; `bicubic`,
    `interpolate_pos_encoding` of transformers; `bicubic_offset`, that of facebookresearch/dino and dinov2;
    `bicubic_corners`, torchvision's `interpolate_embeddings`; `bilinear_corners`, big_vision's `resample_posemb`;
    `bilinear_antialiased`, `Siglip2VisionEmbeddings` of transformers; `…_square`, `NaFlexEmbeds` of timm; `bilinear`,
    transformers' `BeitRelativePositionBias`. `geometric` is for `resize_offsets` alone.
    """
    if old == new:
        return grid
    if compiles_here():
        resized: Tensor = torch.ops.vit.resize_grid(grid, [*old], [*new], how)
        return resized
    return _resize(grid, old, new, how)


def _resize(grid: Tensor, old: Sequence[int], new: Sequence[int], how: str) -> Tensor:
    new = (new[0], new[1])
    table = rearrange(grid.float(), "1 (gh gw) c -> 1 c gh gw", gh=old[0], gw=old[1])
    match how:
        case "bicubic_antialiased" | "bilinear_antialiased":
            mode = how.removesuffix("_antialiased")
            if new[1] == 1:  # torch's repeats the first row when the result has one column
                table = interpolate(table.mT, size=(1, new[0]), mode=mode, antialias=True).mT
            else:
                table = interpolate(table, size=new, mode=mode, antialias=True)
        case "bicubic" | "bilinear":
            table = interpolate(table, size=new, mode=how)
        case "bicubic_offset":
            scale = [(side + RESIZE_OFFSET) / before for side, before in zip(new, old, strict=True)]
            table = interpolate(table, scale_factor=scale, mode="bicubic")
        case "bicubic_corners" | "bilinear_corners":
            table = interpolate(table, size=new, mode=how.removesuffix("_corners"), align_corners=True)
        case "bicubic_square" | "bilinear_square" | "bilinear_corners_square":
            side = max(new)
            mode = how.split("_")[0]
            options = {"antialias": True} if mode == "bicubic" else {"align_corners": "corners" in how}
            table = interpolate(table, size=(side, side), mode=mode, **options)[:, :, : new[0], : new[1]]
        case "geometric":
            raise ValueError("position_resize: 'geometric' is not valid for a grid: it is a way for tables of offsets")
    return rearrange(table, "1 c gh gw -> 1 (gh gw) c").to(grid.dtype)


# One operator for the compiler: where it leaves the grid's size open (images that grow, from the second size on), torch
# cannot trace the gradient of an antialiased bicubic `interpolate` (2.11 to 2.14).
@torch.library.custom_op("vit::resize_grid", mutates_args=())
def _resized(grid: Tensor, old: Sequence[int], new: Sequence[int], how: str) -> Tensor:
    return _resize(grid, old, new, how).contiguous()


@_resized.register_fake
def _empty_resized(grid: Tensor, old: Sequence[int], new: Sequence[int], how: str) -> Tensor:  # noqa: ARG001
    return grid.new_empty(1, new[0] * new[1], grid.shape[2])


@torch.library.custom_op("vit::resize_grid_gradient", mutates_args=())
def _gradient(of_resized: Tensor, old: Sequence[int], new: Sequence[int], how: str) -> Tensor:
    # resizing is a product with one matrix, whose rows it makes of the grid's unit vectors
    units = torch.eye(old[0] * old[1], device=of_resized.device)
    product = _resize(units[None], old, new, how).mT @ of_resized.float()
    return product.to(of_resized.dtype).contiguous()


@_gradient.register_fake
def _empty_gradient(of_resized: Tensor, old: Sequence[int], new: Sequence[int], how: str) -> Tensor:  # noqa: ARG001
    return of_resized.new_empty(1, old[0] * old[1], of_resized.shape[2])


def _keep_sizes(ctx: Any, inputs: tuple[Tensor, Sequence[int], Sequence[int], str], output: Tensor) -> None:  # noqa: ARG001
    _, *ctx.sizes_and_way = inputs


def _differentiate(ctx: Any, of_resized: Tensor) -> tuple[Tensor, None, None, None]:
    return _gradient(of_resized, *ctx.sizes_and_way), None, None, None


_resized.register_autograd(_differentiate, setup_context=_keep_sizes)


def resize_axis(vectors: Tensor, size: int, how: PositionResize = "bicubic_antialiased") -> Tensor:
    """Resize learned vectors along one axis of the grid, `n c`, as `resize_grid` does."""
    return resize_grid(vectors[None], (vectors.shape[0], 1), (size, 1), how)[0]


def resize_offsets(table: Tensor, grid: Grid, how: PositionResize = "bicubic_antialiased") -> Tensor:
    """Resize a table of relative biases `l h rows columns` to the offsets within `grid`.

    `geometric` is timm's `resize_rel_pos_bias_table`; the others are as in `resize_grid`.
    """
    new = (2 * grid[0] - 1, 2 * grid[1] - 1)
    if table.shape[2:] == new:
        return table
    if how == "geometric":
        rows, columns = (geometric_weights(*sizes).to(table.device) for sizes in zip(table.shape[2:], new, strict=True))
        return (rows @ table.float() @ columns.T).to(table.dtype)
    flat = rearrange(table, "l h dr dc -> 1 (dr dc) (l h)")
    flat = resize_grid(flat, (table.shape[2], table.shape[3]), new, how)
    return rearrange(flat, "1 (dr dc) (l h) -> l h dr dc", dr=new[0], h=table.shape[1])


def geometric_weights(old: int, new: int) -> Tensor:
    """Weights `new old` of linear interpolation along an axis of a table of offsets, from `old` to `new` of them.

    The old offsets are set apart by steps that grow geometrically, by 1.01 at least, so that the farthest reaches the
    new one's place: near offsets, which matter most, are moved least (BEiT's `run_class_finetuning.py`).
    """
    half, low, high = old // 2, 1.01, 1.5
    while high - low > 1e-6:
        ratio = (low + high) / 2
        if (1 - ratio**half) / (1 - ratio) > new // 2:
            high = ratio
        else:
            low = ratio
    steps = torch.tensor([ratio**step for step in range(half)], dtype=torch.float64).cumsum(0)
    places = torch.cat((-steps.flip(0), steps.new_zeros(1), steps))
    wanted = torch.arange(-(new // 2), new // 2 + 1, dtype=torch.float64)
    after = torch.bucketize(wanted, places).clamp(max=old - 1)
    before = (after - 1).clamp(min=0)
    gap = places[after] - places[before]
    share = ((wanted - places[before]) / gap.where(gap > 0, 1)).clamp(0, 1)  # beyond the ends: the last bias
    weights = places.new_zeros(new, old)
    weights.scatter_add_(1, before[:, None], 1 - share[:, None])
    return weights.scatter_add_(1, after[:, None], share[:, None]).float()
