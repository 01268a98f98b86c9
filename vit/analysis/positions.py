"""Similarity of the positions of two patches (ViT, figure 7, centre), and how much rows and columns explain of it.

A kind of positions becomes a table, a vector a patch; their cosines are the figure. Of rotary positions the vector is
(cos, sin) of every angle: its cosine with another is the mean of cos(angle difference), which is the mean of the score
of a query with itself, rotated to two places, over all directions of the query.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.analysis.model_structure import patch_grid
from vit.analysis.unsupported import Unsupported
from vit.config import Grid, PositionResize, check, check_arguments
from vit.config.arguments import check_type
from vit.layers.position_resize import resize_grid
from vit.layers.positions import Positions, RelativeBias
from vit.libraries import timm_naflex

if TYPE_CHECKING:
    from vit.figures.style import Figure

MOST_TILES = 16
"""Along a side of the figure; more cannot be told apart."""
LEARNED = ("pos_embed", "pos_embedding", "position_embeddings", "position_embedding.weight")
"""Endings of a learned table's name in the libraries; rows of prefix tokens come first."""
ELSEWHERE = ("text", "head.")
"""In the names of tables that are none of the image's tokens: those of a text tower, of a pooling head."""
RESIZES: dict[str, PositionResize] = {
    "timm.": "bicubic_antialiased",
    "open_clip.": "bicubic_antialiased",
    "torchvision.": "bicubic_corners",
    "transformers.models.dinov2_with_registers.": "bicubic_antialiased",
    "transformers.models.siglip2.": "bilinear_antialiased",
    "transformers.": "bicubic",
}
"""Home of a model's class → the library's way of resizing a learned table; the first that fits."""
CONVENTIONS = {
    "similarity": "cosine of the position vectors of two patches; prefix tokens' are left out",
    "rope": "the mean over all directions of a query q of its score with itself, <R_i q, R_j q> / |q|², exactly: the "
    "mean of cos(angle_i - angle_j) over the angles",
    "distance_correlation": "Pearson, of similarity and Euclidean distance on the grid, over pairs of patches",
    "row_share": "of a tile's variance, what the means of its rows explain; column_share alike; all tiles together",
    "chance_row_share": "the same of independent numbers: (rows - 1) / (patches - 1)",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class PositionTable:
    """A vector for every patch, `n c` with n = gh gw."""

    vectors: Tensor
    grid: Grid
    kind: str


@dataclass(frozen=True, kw_only=True, eq=False)
class PositionSimilarity:
    """`similarity[r, c]` is the tile of the patch in row r and column c: gh gw gh gw."""

    similarity: Tensor
    kind: str
    distance_correlation: float
    """NaN where all similarities are equal."""
    row_share: float
    column_share: float

    @property
    def grid(self) -> Grid:
        rows, columns = self.similarity.shape[:2]
        return rows, columns

    def plot(self, most: int = MOST_TILES) -> Figure:
        """Draw a tile for each patch, or for every k-th along both sides where the grid has more than `most`."""
        from vit.figures import plot_position_similarity

        step = self.step(most)
        rows, columns = (range((size - 1) % step // 2, size, step) for size in self.grid)
        return plot_position_similarity(self.similarity[rows.start :: step, columns.start :: step], rows, columns)

    def step(self, most: int = MOST_TILES) -> int:
        """The k of the k-th patches that have a tile in the figure."""
        return -(-max(self.grid) // most)

    def numbers(self) -> dict[str, Any]:
        gh, gw = self.grid
        patches = max(gh * gw - 1, 1)
        return {
            "kind": self.kind,
            "grid": [gh, gw],
            "distance_correlation": self.distance_correlation,
            "row_share": self.row_share,
            "column_share": self.column_share,
            "chance_row_share": (gh - 1) / patches,
            "chance_column_share": (gw - 1) / patches,
            "conventions": CONVENTIONS,
        }


@check_arguments
def position_similarity(model: Any, grid: Grid | None = None, *, kind: str | None = None) -> PositionSimilarity:
    """The similarity of a model's positions, on `grid` as the model resizes them to it.

    `kind`: which positions, where the model has several (`position_vectors`); None: the first. Unsupported where the
    model has no position vectors, ValueError where it has none of that kind.
    """
    tables = position_vectors(model, grid)
    check(kind is None or kind in tables, "kind", kind, f"the model has {', '.join(tables)}")
    return similarity_of(tables[kind or next(iter(tables))])


@torch.no_grad()
@check_arguments
def similarity_of(table: PositionTable) -> PositionSimilarity:
    """Cosines of a table's vectors, in float64, and their relation to rows, columns and distance."""
    gh, gw = table.grid
    vectors = nn.functional.normalize(table.vectors.detach().cpu().double(), dim=1)
    flat = vectors @ vectors.T  # n n
    tiles = rearrange(flat, "(r c) (y x) -> r c y x", r=gh, y=gh)
    total = (tiles - tiles.mean(dim=(2, 3), keepdim=True)).square().sum()
    shares = []
    for axis, length in ((3, gw), (2, gh)):
        means = tiles.mean(dim=axis) - tiles.mean(dim=(2, 3))[..., None]  # r c y, or r c x
        shares.append(float(length * means.square().sum() / total) if total > 0 else float("nan"))
    return PositionSimilarity(
        similarity=tiles,
        kind=table.kind,
        distance_correlation=_correlation_with_distance(flat, table.grid),
        row_share=shares[0],
        column_share=shares[1],
    )


@torch.no_grad()
@check_arguments
def position_vectors(model: Any, grid: Grid | None = None) -> dict[str, PositionTable]:
    """The position vectors of a model of any library, by kind, on its own grid or resized to `grid`.

    Learned tables of other libraries are resized as these do it. Unsupported where there are none, and where a table is
    to be resized whose library is not known.
    """
    check_type("model", model, nn.Module)
    check(grid is None or min(grid) > 0, "grid", grid, "it must have rows and columns of patches")
    grid = None if grid is None else (grid[0], grid[1])  # which may be a list
    positions = getattr(model, "positions", None)
    tables = _our_tables(model, positions, grid) if isinstance(positions, Positions) else _other_tables(model, grid)
    if not tables:
        kinds = f"a parameter ending in {', '.join(LEARNED)}, or rotary positions"
        raise Unsupported(
            f"model: {type(model).__name__} is not valid: it has no position vectors that are known ({kinds})"
        )
    return {table.kind: table for table in tables}


def _our_tables(model: Any, positions: Positions, grid: Grid | None) -> list[PositionTable]:
    grid, kind, device = grid or model.grid_size, model.config.positions, next(model.parameters()).device
    if isinstance(positions, RelativeBias):
        rule = "its positions are biases on the scores, and have no vectors to compare"
        raise Unsupported(f"model.positions: {kind!r} is not valid: {rule}")
    tables = []
    if kind not in ("rope", "none"):
        vectors = positions(torch.zeros(1, grid[0] * grid[1], model.config.width, device=device), grid)[0]
        tables.append(PositionTable(vectors=vectors, grid=grid, kind=kind.removesuffix("_rope")))
    if positions.rotary is not None:
        angles = positions.rotary.angles(grid, None, device)
        parts = [rearrange(part, "... n d -> n (... d)") for each in angles for part in (each.cos(), each.sin())]
        tables.append(PositionTable(vectors=torch.cat(parts, dim=1), grid=grid, kind="rope"))
    return tables


def _other_tables(model: Any, grid: Grid | None) -> list[PositionTable]:
    tables = []
    for name, parameter in model.named_parameters():
        if name.endswith(LEARNED) and parameter.dim() in (2, 3, 4) and not any(part in name for part in ELSEWHERE):
            tables.append(_learned_table(model, parameter, grid))
            break
    for name, module in model.named_modules():
        if name.endswith(("rope", "rope_embeddings")):
            tables.append(_rotary_table(model, module, grid or patch_grid(model)))
            break
    return tables


def _learned_table(model: Any, parameter: Tensor, grid: Grid | None) -> PositionTable:
    """The last rows of a table, `(prefix + n) c`, perhaps with a 1 in front, or of a grid `1 gh gw c`."""
    old = (parameter.shape[1], parameter.shape[2]) if parameter.dim() == 4 else patch_grid(model)
    rows = parameter if parameter.dim() == 2 else parameter[0].flatten(0, -2)
    count = old[0] * old[1]
    if len(rows) < count:
        raise Unsupported(f"model: {type(model).__name__} is not valid: {len(rows)} positions for {old[0]}×{old[1]}")
    new, vectors = grid or old, rows[len(rows) - count :]
    if new != old:
        vectors = resize_grid(vectors[None], old, new, _library_resize(model))[0]
    return PositionTable(vectors=vectors, grid=new, kind="learned")


def _library_resize(model: nn.Module) -> PositionResize:
    """The way of resizing positions of the library that a model's class is from."""
    for module in model.modules():
        if type(module).__name__ == "NaFlexVit":
            if timm_naflex.unsupported_part(module):
                raise Unsupported(f"grid: {type(model).__name__} resizes its positions in a way that is not known")
            return timm_naflex.position_resize(module)
        if home := next((home for home in RESIZES if type(module).__module__.startswith(home)), None):
            return RESIZES[home]
    known = ", ".join(home.rstrip(".") for home in RESIZES)
    raise Unsupported(f"grid: how {type(model).__name__} resizes its positions is not known; known are {known}")


def _rotary_table(model: Any, module: Any, grid: Grid) -> PositionTable:
    """timm's `get_embed` gives sines beside cosines, of every layer and head where they differ; transformers' module
    both for an image of the size.
    """
    module = deepcopy(module).eval()  # timm's is told of another grid for good
    if hasattr(module, "get_embed"):
        if hasattr(module, "update_feat_shape"):
            module.update_feat_shape(list(grid))
        table = module.get_embed(list(grid))
        vectors = rearrange(table[(None,) * (4 - table.dim())], "l h n d -> n (l h d)")
    else:
        step = model.config.patch_size
        pixels = torch.zeros(1, 3, grid[0] * step, grid[1] * step, device=next(model.parameters()).device)
        vectors = torch.cat(module(pixels), dim=-1)
    return PositionTable(vectors=vectors, grid=grid, kind="rope")


def _correlation_with_distance(flat: Tensor, grid: Grid) -> float:
    places = torch.cartesian_prod(*(torch.arange(size, dtype=torch.float64) for size in grid))  # n 2
    others = ~torch.eye(len(places), dtype=torch.bool)
    pairs = torch.stack((flat[others], torch.cdist(places, places)[others]))
    if len(places) < 3 or float(pairs.std(dim=1).min()) < 1e-12:
        return float("nan")
    return float(torch.corrcoef(pairs)[0, 1])
