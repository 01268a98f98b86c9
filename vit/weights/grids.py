"""The patch grid of a table of learned positions, inferred from the number of its rows."""

from __future__ import annotations

import math

from vit.config import Grid


def infer_grid(rows: int, *, num_prefix: int, possible_prefix: int, model_grid: Grid, name: str) -> Grid:
    """Infer the grid of a table of `rows` rows, the first `num_prefix` of which belong to prefix tokens.

    `possible_prefix`: the number of prefix tokens that might have positions. ValueError where no grid fits, and where
    more than one does.
    """
    num_patches = rows - num_prefix
    candidates = {model_grid} if model_grid[0] * model_grid[1] == num_patches else set()
    grids = sorted(candidates | ({square} if (square := _square(num_patches)) else set()))
    others = [(other, square) for other in {0, possible_prefix} - {num_prefix} if (square := _square(rows - other))]
    if len(grids) == 1 and (grids[0][0] == grids[0][1] or not others):
        return grids[0]
    if grids:
        fits = [_describe(num_prefix, grid) for grid in grids] + [_describe(other, grid) for other, grid in others]
        raise ValueError(
            f"model.pretrained: {name} has positions of {rows} tokens, which fit {' and '.join(fits)}; "
            "choose one by model.pretrained_grid"
        )
    hint = "".join(f"; it would fit {_describe(other, grid)}, see model.positions_on_prefix" for other, grid in others)
    raise ValueError(
        f"model.pretrained: {name} has positions for {num_patches} patches, neither the model's "
        f"{model_grid[0]}×{model_grid[1]} nor a square{hint}; is model.name (prefix tokens, patch size) the right one?"
    )


def check_grid(rows: int, num_prefix: int, grid: Grid, name: str) -> Grid:
    """Return `grid`. ValueError unless it has as many patches as the table."""
    if grid[0] * grid[1] != rows - num_prefix:
        raise ValueError(
            f"model.pretrained_grid: {list(grid)} is not valid: {name} has positions for {rows - num_prefix} patches"
        )
    return grid


def _square(count: int) -> Grid | None:
    side = math.isqrt(max(count, 0))
    return (side, side) if side and side * side == count else None


def _describe(num_prefix: int, grid: Grid) -> str:
    return f"{grid[0]}×{grid[1]} patches and {num_prefix or 'no'} prefix token{'' if num_prefix == 1 else 's'}"
