"""Position embeddings for patches (ViT, appendix D.4).

A kind may add to the patches (`forward`), add to the attention scores (`biases`) or rotate queries and keys
(`rotations`). Every kind takes any grid: learned ones are resized. `kept` (b, k): the patches that patch dropout kept,
None: all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import rearrange, repeat
from torch import Tensor, nn
from torch.nn.functional import pad

from vit.config import Grid, PositionResize, ViTConfig
from vit.layers.position_resize import resize_axis, resize_grid, resize_offsets
from vit.layers.rotary import Rotary, Rotation

SINCOS_TEMPERATURE = 10_000.0


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

    def biases(self, grid: Grid, kept: Tensor | None) -> tuple[Tensor, ...] | BlockBiases | None:  # noqa: ARG002
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


@dataclass(frozen=True, eq=False)
class BlockBiases:
    """Every block's bias, `1 h N N` or `b h N N`, made when it is asked for: all at once can be gigabytes."""

    numbers: Tensor
    """l h e: what each block may add."""
    places: Tensor
    """b N N: which of them is for a pair of tokens."""

    def __getitem__(self, block: int) -> Tensor:
        return rearrange(self.numbers[block][:, self.places], "h b n m -> b h n m")


class RelativeBias(Positions):
    """A learned number for every block, head and offset between two patches.

    For pairs with a prefix token it is 0, or one of three learned numbers: from a prefix token to a patch, from a patch
    to a prefix token, between prefix tokens (BEiT: Bao et al. 2021).
    """

    prefix_table: Tensor | None

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        count = {"blocks": config.depth, "shared": 1, "both": 1 + config.depth}[config.relative_tables]
        sides = [2 * side - 1 for side in config.grid_size]
        self.table = nn.Parameter(torch.empty(count, config.num_heads, *sides))
        """l h dr dc; with `both`, the shared one is the first."""
        self.prefix_table = None
        if config.relative_prefix:
            self.prefix_table = nn.Parameter(torch.empty(count, config.num_heads, 3))

    def biases(self, grid: Grid, kept: Tensor | None) -> tuple[Tensor, ...] | BlockBiases:
        flat: Tensor = rearrange(resize_offsets(self.table, grid, self.config.position_resize), "l h r c -> l h (r c)")
        of_prefix = flat.new_zeros(*flat.shape[:2], 3) if self.prefix_table is None else self.prefix_table
        numbers, places = torch.cat((flat, of_prefix), dim=2), self._places(grid, kept)  # l h e, b N N
        if self.config.relative_tables == "shared":
            return (BlockBiases(numbers, places)[0],) * self.config.depth
        if self.config.relative_tables == "both":
            numbers = numbers[1:] + numbers[:1]
        return BlockBiases(numbers, places)

    @torch.no_grad()
    def set_grid(self, grid: Grid) -> None:
        resized = resize_offsets(self.table, grid, self.config.position_resize)
        self.table = nn.Parameter(resized.clone(), self.table.requires_grad)

    def _places(self, grid: Grid, kept: Tensor | None) -> Tensor:
        """The place of every pair of tokens among the offsets and the three numbers after them, `b N N`."""
        offsets, prefix = self._offsets(grid), self.config.num_prefix_tokens
        if kept is not None:
            offsets = offsets[0][kept[:, :, None], kept[:, None, :]]  # b k k
        first = (2 * grid[0] - 1) * (2 * grid[1] - 1)
        between = offsets.new_full((offsets.shape[0], prefix, prefix), first + 2)
        from_prefix = pad(between, (0, offsets.shape[2]), value=first)  # b p N
        return torch.cat((from_prefix, pad(offsets, (prefix, 0), value=first + 1)), dim=1)

    def _offsets(self, grid: Grid) -> Tensor:
        """The place in the table of the offset from every patch to every patch, `1 n n`."""
        rows, columns = (torch.arange(size, device=self.table.device) for size in grid)
        row, column = repeat(rows, "gh -> (gh gw)", gw=grid[1]), repeat(columns, "gw -> (gh gw)", gh=grid[0])
        down, right = row[:, None] - row + grid[0] - 1, column[:, None] - column + grid[1] - 1
        return (down * (2 * grid[1] - 1) + right)[None]


def build_positions(config: ViTConfig) -> Positions:
    """The kind that the configuration names."""
    grid, placed, resize = config.grid_size, config.num_placed_tokens, config.position_resize
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
            return RelativeBias(config)
        case "none":
            return Positions()
