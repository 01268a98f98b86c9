"""Position embeddings for patches (ViT, appendix D.4).

A kind may add to the patches (`forward`), add to the attention scores (`biases`) or rotate queries and keys
(`rotations`). Every kind takes any grid: learned ones are resized. `kept` (b, k): the patches that patch dropout kept,
None: all.
"""

from __future__ import annotations

import torch
from einops import rearrange, repeat
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

from vit.config import PositionResize, ViTConfig
from vit.layers.rotary import Rotary, Rotation

Grid = tuple[int, int]

SINCOS_TEMPERATURE = 10_000.0
RESIZE_OFFSET = 0.1
"""Patches by which DINO's scale factors exceed the grid, so that rounding never makes it smaller."""


def resize_grid(grid: Tensor, old: Grid, new: Grid, how: PositionResize = "bicubic_antialiased") -> Tensor:
    """`1 (gh gw) c` from the grid `old` to the grid `new`; unchanged for the same grid.

    `how`, and its source: `bicubic_antialiased`, `timm.layers.resample_abs_pos_embed`; `bicubic`,
    `interpolate_pos_encoding` of transformers; `bicubic_offset`, that of facebookresearch/dino and dinov2;
    `bicubic_corners`, torchvision's `interpolate_embeddings`; `bilinear_corners`, big_vision's `resample_posemb`.
    """
    if old == new:
        return grid
    table = rearrange(grid.float(), "1 (gh gw) c -> 1 c gh gw", gh=old[0], gw=old[1])
    match how:
        case "bicubic_antialiased" if new[1] == 1:  # torch's repeats the first row when the result has one column
            table = interpolate(table.mT, size=(1, new[0]), mode="bicubic", antialias=True).mT
        case "bicubic_antialiased":
            table = interpolate(table, size=new, mode="bicubic", antialias=True)
        case "bicubic":
            table = interpolate(table, size=new, mode="bicubic")
        case "bicubic_offset":
            scale = [(side + RESIZE_OFFSET) / before for side, before in zip(new, old, strict=True)]
            table = interpolate(table, scale_factor=scale, mode="bicubic")
        case "bicubic_corners":
            table = interpolate(table, size=new, mode="bicubic", align_corners=True)
        case "bilinear_corners":
            table = interpolate(table, size=new, mode="bilinear", align_corners=True)
    return rearrange(table, "1 c gh gw -> 1 (gh gw) c").to(grid.dtype)


def resize_axis(vectors: Tensor, size: int, how: PositionResize = "bicubic_antialiased") -> Tensor:
    """Resize learned vectors along one axis of the grid, `n c`, as `resize_grid` does."""
    return resize_grid(vectors[None], (vectors.shape[0], 1), (size, 1), how)[0]


def resize_offsets(table: Tensor, grid: Grid, how: PositionResize = "bicubic_antialiased") -> Tensor:
    """Resize a table of relative biases `l h rows columns` to the offsets within `grid`."""
    new = (2 * grid[0] - 1, 2 * grid[1] - 1)
    if table.shape[2:] == new:
        return table
    flat = rearrange(table, "l h dr dc -> 1 (dr dc) (l h)")
    flat = resize_grid(flat, (table.shape[2], table.shape[3]), new, how)
    return rearrange(flat, "1 (dr dc) (l h) -> l h dr dc", dr=new[0], h=table.shape[1])


def sincos_2d(grid: Grid, width: int, *, device: torch.device | None = None) -> Tensor:
    """Fixed sines and cosines, `1 (gh gw) c`, of squared norm c/2 (big_vision, `posemb_sincos_2d`)."""
    rates = SINCOS_TEMPERATURE ** -torch.linspace(0, 1, width // 4, device=device)
    rows, columns = (torch.arange(size, device=device)[:, None] * rates for size in grid)
    y, x = repeat(rows, "gh c -> (gh gw) c", gw=grid[1]), repeat(columns, "gw c -> (gh gw) c", gh=grid[0])
    return torch.cat((x.sin(), x.cos(), y.sin(), y.cos()), dim=1)[None]  # 1 n c


class Positions(nn.Module):
    """No position embedding; the interface of every kind."""

    prefix: Tensor | None

    def __init__(self, width: int = 0, num_prefix: int = 0, rotary: Rotary | None = None) -> None:
        """`num_prefix` class and distillation tokens have a learned position, `prefix`."""
        super().__init__()
        self.rotary = rotary
        self.prefix = nn.Parameter(torch.empty(1, num_prefix, width)) if num_prefix else None

    def forward(self, patches: Tensor, grid: Grid) -> Tensor:  # noqa: ARG002
        """The patches `b n c` with their embedding added."""
        return patches

    def rotations(self, grid: Grid, kept: Tensor | None, device: torch.device) -> tuple[Rotation, ...] | None:
        """For every block, the rotation of its queries and keys."""
        return None if self.rotary is None else self.rotary.rotations(grid, kept, device)

    def biases(self, grid: Grid, kept: Tensor | None) -> tuple[Tensor, ...] | None:  # noqa: ARG002
        """For every block, the bias on its scores, `1 h N N` or `b h N N` with N all tokens."""
        return None

    @torch.no_grad()
    def set_grid(self, grid: Grid) -> None:
        """Resize learned parameters to another grid; an optimizer must be given the new ones."""


class LearnedGrid(Positions):
    """One learned vector per patch."""

    def __init__(
        self, grid: Grid, width: int, num_prefix: int, resize: PositionResize, rotary: Rotary | None = None
    ) -> None:
        super().__init__(width, num_prefix, rotary)
        self.size = grid
        self.resize: PositionResize = resize
        self.grid = nn.Parameter(torch.empty(1, grid[0] * grid[1], width))

    def forward(self, patches: Tensor, grid: Grid) -> Tensor:
        return patches + resize_grid(self.grid, self.size, grid, self.resize)

    @torch.no_grad()
    def set_grid(self, grid: Grid) -> None:
        resized = resize_grid(self.grid, self.size, grid, self.resize)
        self.grid = nn.Parameter(resized.clone(), self.grid.requires_grad)
        self.size = grid


class LearnedAxes(Positions):
    """A learned half vector per row and one per column, concatenated."""

    def __init__(self, grid: Grid, width: int, num_prefix: int, resize: PositionResize) -> None:
        super().__init__(width, num_prefix)
        self.resize: PositionResize = resize
        self.rows = nn.Parameter(torch.empty(grid[0], width // 2))
        self.columns = nn.Parameter(torch.empty(grid[1], width // 2))

    def forward(self, patches: Tensor, grid: Grid) -> Tensor:
        rows, columns = self._resized(grid)
        halves = repeat(rows, "gh c -> (gh gw) c", gw=grid[1]), repeat(columns, "gw c -> (gh gw) c", gh=grid[0])
        return patches + torch.cat(halves, dim=1)

    @torch.no_grad()
    def set_grid(self, grid: Grid) -> None:
        rows, columns = self._resized(grid)
        self.rows = nn.Parameter(rows.clone(), self.rows.requires_grad)
        self.columns = nn.Parameter(columns.clone(), self.columns.requires_grad)

    def _resized(self, grid: Grid) -> tuple[Tensor, Tensor]:
        return resize_axis(self.rows, grid[0], self.resize), resize_axis(self.columns, grid[1], self.resize)


class SinCos(Positions):
    """`sincos_2d`; prefix tokens have no position."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, patches: Tensor, grid: Grid) -> Tensor:
        return patches + sincos_2d(grid, self.width, device=patches.device).to(patches.dtype)


class RelativeBias(Positions):
    """A learned number for every block, head and offset between two patches; 0 for pairs with a prefix token."""

    def __init__(
        self,
        grid: Grid,
        depth: int,
        num_heads: int,
        num_prefix: int,
        resize: PositionResize = "bicubic_antialiased",
    ) -> None:
        super().__init__()
        self.size = grid
        self.resize: PositionResize = resize
        self.num_prefix = num_prefix
        self.table = nn.Parameter(torch.empty(depth, num_heads, 2 * grid[0] - 1, 2 * grid[1] - 1))

    def biases(self, grid: Grid, kept: Tensor | None) -> tuple[Tensor, ...]:
        flat: Tensor = rearrange(resize_offsets(self.table, grid, self.resize), "l h dr dc -> l h (dr dc)")
        offsets = self._offsets(grid)  # 1 n n
        if kept is not None:
            offsets = offsets[0][kept[:, :, None], kept[:, None, :]]  # b k k
        full = pad(rearrange(flat[:, :, offsets], "l h b n m -> l b h n m"), (self.num_prefix, 0) * 2)
        return full.unbind(0)

    @torch.no_grad()
    def set_grid(self, grid: Grid) -> None:
        self.table = nn.Parameter(resize_offsets(self.table, grid, self.resize).clone(), self.table.requires_grad)
        self.size = grid

    def _offsets(self, grid: Grid) -> Tensor:
        """Index into the table of the offset from every patch to every patch, `1 n n`."""
        rows, columns = (torch.arange(size, device=self.table.device) for size in grid)
        row, column = repeat(rows, "gh -> (gh gw)", gw=grid[1]), repeat(columns, "gw -> (gh gw)", gh=grid[0])
        down, right = row[:, None] - row + grid[0] - 1, column[:, None] - column + grid[1] - 1
        return (down * (2 * grid[1] - 1) + right)[None]


def build_positions(config: ViTConfig) -> Positions:
    """The kind that the configuration names."""
    grid, num_prefix = config.grid_size, config.num_prefix_tokens
    placed, resize = config.num_placed_tokens, config.position_resize
    match config.positions:
        case "learned_1d":
            return LearnedGrid(grid, config.width, placed, resize)
        case "learned_1d_rope":
            return LearnedGrid(grid, config.width, placed, resize, Rotary(config))
        case "learned_2d":
            return LearnedAxes(grid, config.width, placed, resize)
        case "sincos_2d":
            return SinCos(config.width)
        case "rope":
            return Positions(rotary=Rotary(config))
        case "relative":
            return RelativeBias(grid, config.depth, config.num_heads, num_prefix, resize)
        case "none":
            return Positions()
