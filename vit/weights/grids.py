"""On which grid of patches positions were learned, when only their number is known. Knows no tensors."""

from __future__ import annotations

import math

Grid = tuple[int, int]


def read_grid(rows: int, *, placed: int, tokens: int, wanted: Grid, name: str) -> Grid:
    """The grid of a table of `rows` rows, the first `placed` of them of prefix tokens.

    `tokens`: how many prefix tokens there are that might have positions, `wanted`: the model's grid. ValueError where
    no grid fits, and where two do.
    """
    readings = _grids(rows - placed, wanted)
    others = [(other, square) for other in {0, tokens} - {placed} if (square := _square(rows - other))]
    if len(readings) == 1 and (readings[0][0] == readings[0][1] or not others):
        return readings[0]
    if readings:
        fits = [_say(placed, grid) for grid in readings] + [_say(other, grid) for other, grid in others]
        raise ValueError(
            f"model.pretrained: {name} has positions of {rows} tokens, which fit {' and '.join(fits)}; "
            "say which by model.pretrained_grid"
        )
    hint = "".join(f"; it would fit {_say(other, grid)}, see model.positions_on_prefix" for other, grid in others)
    raise ValueError(
        f"model.pretrained: {name} has positions for {rows - placed} patches, neither the model's "
        f"{wanted[0]}×{wanted[1]} nor a square{hint}; is model.name (prefix tokens, patch size) the right one?"
    )


def check_grid(rows: int, placed: int, grid: Grid, name: str) -> Grid:
    """`grid`, if that many patches have positions. ValueError where they do not."""
    if grid[0] * grid[1] != rows - placed:
        raise ValueError(
            f"model.pretrained_grid: {list(grid)} is not valid: {name} has positions for {rows - placed} patches"
        )
    return grid


def _grids(count: int, wanted: Grid) -> list[Grid]:
    """The model's own grid, if it has as many patches, and the square."""
    fitting = {wanted} if wanted[0] * wanted[1] == count else set()
    return sorted(fitting | ({square} if (square := _square(count)) else set()))


def _square(count: int) -> Grid | None:
    side = math.isqrt(max(count, 0))
    return (side, side) if side and side * side == count else None


def _say(placed: int, grid: Grid) -> str:
    return f"{grid[0]}×{grid[1]} patches" + (f" and {placed} of prefix tokens" if placed else " and none of a prefix")
