"""The patches after a block, looked at over several images: principal components as colours, and the likeness of one
patch to all others.

The components follow Oquab et al. 2023 (DINOv2, figure 1 and section 7.5): the first one over the patches of all images
parts the foreground from the background, and the foreground has components of its own. A ResNet's map is read as
patches, one a place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.analysis.model_structure import check_images, crop_to_patches, forward_hooks, residual_blocks
from vit.analysis.tokens import block_patches, pictures_of
from vit.config import Grid, check, check_arguments
from vit.evaluation.evaluate import evaluating

if TYPE_CHECKING:
    from vit.figures.style import Figure

NUM_COMPONENTS = 3
"""As many as there are colours."""
MOST_DRAWN = 8
"""Images in a figure."""
_TAILS = (0.01, 0.99)
CONVENTIONS = {
    "patches": "after the block, each token centred and scaled over its channels as a LayerNorm without gains does, so "
    "that no token weighs more for its length",
    "scores": "on the first three principal components of the patches of all images together, b gh gw 3",
    "signs": "the first component is positive where patches lie nearer to the middle of their image on average; of the "
    "others, and of all of the foreground's, the loading of largest magnitude is positive",
    "foreground": "patches with a positive first score (Oquab et al. 2023)",
    "foreground_scores": "on components of the foreground's patches alone; none in the background",
    "explained": "share of the variance of each component",
    "picture": "a component a colour: red, green, blue, each from the 1st to the 99th percentile of its scores",
}
SIMILARITY_CONVENTIONS = {
    "similarity": "cosine of each patch after the block with the patch `query` of the same image, b gh gw",
    "query": "row and column of the patch, from 0",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class PatchComponents:
    """Principal components of the patches of several images, in float64."""

    scores: Tensor
    """b gh gw 3"""
    foreground: Tensor
    """b gh gw, bool"""
    foreground_scores: Tensor
    """b gh gw 3, NaN in the background"""
    explained: Tensor
    """3"""
    foreground_explained: Tensor
    """3"""
    layer: str
    images: Tensor
    """b 3 H W, normalised: the part that the patches lie on."""

    def plot(self, *, pixels: Tensor | None = None) -> Figure:
        """Draw the first images above the components of all patches and of the foreground; `pixels` (uint8, the same
        images) as they were before normalisation."""
        from vit.figures import plot_patch_components

        pictures = pictures_of(self.images, pixels)[:MOST_DRAWN]
        colours = [_colours(scores)[:MOST_DRAWN] for scores in (self.scores, self.foreground_scores)]
        return plot_patch_components(pictures, colours[0], colours[1])

    def numbers(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "explained": self.explained.tolist(),
            "foreground_explained": self.foreground_explained.tolist(),
            "foreground_share": self.foreground.double().mean(dim=(1, 2)).tolist(),
            "scores": self.scores.float().round(decimals=3).tolist(),
            "foreground_scores": self.foreground_scores.float().round(decimals=3).tolist(),
            "conventions": CONVENTIONS,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class PatchSimilarity:
    """`similarity` b gh gw: cosine of every patch with the patch `query` (row, column) of its image."""

    similarity: Tensor
    query: tuple[int, int]
    layer: str
    images: Tensor
    """b 3 H W, normalised: the part that the patches lie on."""

    def plot(self, *, pixels: Tensor | None = None) -> Figure:
        """Draw the first images, the patch framed, above the cosines; `pixels` as in `PatchComponents.plot`."""
        from vit.figures import plot_patch_similarity

        pictures = pictures_of(self.images, pixels)[:MOST_DRAWN]
        return plot_patch_similarity(pictures, self.similarity[:MOST_DRAWN], self.query)

    def numbers(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "query": list(self.query),
            "similarity": self.similarity.float().round(decimals=4).tolist(),
            "conventions": SIMILARITY_CONVENTIONS,
        }


@check_arguments
def patch_components(model: nn.Module, images: Tensor, *, block: int = -1) -> PatchComponents:
    """Components over all normalised images `b 3 H W` at once, after one of the blocks; -1: the last.

    All patches of the images are kept: for a few of them. ValueError for a block that is not there, Unsupported for a
    model without known blocks.
    """
    tokens, layer = patches_after(model, images, block)
    tokens = nn.functional.layer_norm(tokens, tokens.shape[-1:])
    scores, explained = _principal_scores(rearrange(tokens, "b gh gw c -> (b gh gw) c"))
    scores = rearrange(scores, "(b gh gw) k -> b gh gw k", b=tokens.shape[0], gh=tokens.shape[1])
    nearness = -_distance_from_middle((tokens.shape[1], tokens.shape[2]))
    middle = (scores[..., 0] * (nearness - nearness.mean())).sum()
    scores[..., 0] *= -1.0 if middle < 0 else 1.0
    foreground = scores[..., 0] > 0
    own_scores = torch.full_like(scores, float("nan"))
    own_scores[foreground], own_explained = _principal_scores(tokens[foreground])
    return PatchComponents(
        scores=scores,
        foreground=foreground,
        foreground_scores=own_scores,
        explained=explained,
        foreground_explained=own_explained,
        layer=layer,
        images=crop_to_patches(model, images).detach().cpu(),
    )


@check_arguments
def patch_similarity(
    model: nn.Module, images: Tensor, *, query: tuple[int, int] | None = None, block: int = -1
) -> PatchSimilarity:
    """Cosines of one patch with all others of its image, for normalised images `b 3 H W`.

    `query`: row and column of the patch, from 0; None: the middle of the image. `block`: after which; -1: the last.
    ValueError for a patch or a block that is not there, Unsupported for a model without known blocks.
    """
    tokens, layer = patches_after(model, images, block)
    gh, gw = tokens.shape[1:3]
    row, column = query or (gh // 2, gw // 2)
    inside = 0 <= row < gh and 0 <= column < gw
    check(inside, "query", query, f"the patches are numbered from (0, 0) to ({gh - 1}, {gw - 1})")
    units = nn.functional.normalize(tokens, dim=-1)
    return PatchSimilarity(
        similarity=(units * units[:, row : row + 1, column : column + 1]).sum(dim=-1),
        query=(row, column),
        layer=layer,
        images=crop_to_patches(model, images).detach().cpu(),
    )


@torch.no_grad()
def patches_after(model: nn.Module, images: Tensor, block: int = -1) -> tuple[Tensor, str]:
    """The patches `b gh gw c` after a block, float64 on the CPU, and the block's name. ValueError for no such block."""
    check_images(model, images)
    blocks = residual_blocks(model)
    rule = f"{type(model).__name__} has the blocks 0 to {len(blocks) - 1}, or -1 for the last"
    check(-len(blocks) <= block < len(blocks), "block", block, rule)
    name = list(blocks)[block]
    found: dict[str, Tensor] = {}
    with evaluating(model), forward_hooks({name: blocks[name]}, found.__setitem__):
        model(images)
    return block_patches(model, found[name].cpu().double(), (images.shape[2], images.shape[3])), name


def _principal_scores(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Scores `n 3` of rows `n c`, and each component's share of the variance; 0 where there are no more of them."""
    centred = rows - rows.mean(dim=0)
    values, vectors = torch.linalg.eigh(centred.T @ centred)  # ascending
    components = vectors.flip(1)[:, :NUM_COMPONENTS]  # c 3
    largest = components.gather(0, components.abs().argmax(dim=0, keepdim=True))
    shares = (values.flip(0)[:NUM_COMPONENTS] / values.sum().clamp(min=torch.finfo(values.dtype).tiny)).clamp(min=0)
    return centred @ (components * largest.sign()), shares


def _distance_from_middle(grid: Grid) -> Tensor:
    """The distance of every patch, gh gw, with both sides of the image from -1 to 1."""
    down, right = ((torch.arange(size) + 0.5) / size * 2 - 1 for size in grid)
    return torch.hypot(down[:, None], right).double()


def _colours(scores: Tensor) -> Tensor:
    """Scores `b gh gw 3` as colours from 0 to 1; NaN stays."""
    flat = scores.flatten(0, 2)
    low, high = (flat.nanquantile(tail, dim=0) for tail in _TAILS)
    return ((scores - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
