"""Similarity of the layers of two models: centred kernel alignment with linear kernels, unbiased, in mini-batches.

Kornblith et al. 2019; the estimate: Song et al. 2012; averaged over mini-batches: Nguyen et al. 2021; of ViTs and
ResNets: Raghu et al. 2021. A layer's representation of an image is everything its block gives: all tokens, or the whole
map. A batch's Gram matrices are made once a layer as it computes, in float64; no features are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.analysis.model_structure import check_images, forward_hooks, residual_blocks
from vit.config import check, check_arguments
from vit.evaluation.evaluate import evaluating

if TYPE_CHECKING:
    from vit.figures.style import Figure

SMALLEST_BATCH = 4
"""Below, the unbiased estimate divides by 0."""
CONVENTIONS = {
    "cka": "linear; HSIC by the unbiased estimate (Song et al. 2012), averaged over batches, weighted by their images, "
    "before the ratio (Nguyen et al. 2021); a batch with all images in it is exact for that set; batches must be drawn "
    "at random",
    "features": "all that a residual block gives for an image, flattened: every token, or the whole map",
    "range": "1: alike up to rotation and scale; around 0: unrelated; the estimate may fall below 0",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class RepresentationSimilarity:
    """`similarity[i, j]`: of the first model's layer i and the second's layer j, `l k`, float64."""

    similarity: Tensor
    first_layers: list[str]
    second_layers: list[str]
    num_images: int
    num_batches: int
    num_left_out: int
    """Images of batches of fewer than four."""

    def plot(self, first: str = "first model", second: str = "second model") -> Figure:
        """Draw the similarity of every pair of blocks, under the names of the two models."""
        from vit.figures import plot_representation_similarity

        return plot_representation_similarity(self.similarity, first, second)

    def numbers(self) -> dict[str, Any]:
        return {
            "similarity": self.similarity.tolist(),
            "first_layers": self.first_layers,
            "second_layers": self.second_layers,
            "num_images": self.num_images,
            "num_batches": self.num_batches,
            "num_left_out": self.num_left_out,
            "conventions": CONVENTIONS,
        }


class AlignmentSums:
    """The sums of HSIC over batches, from which the alignment of every pair of layers follows."""

    def __init__(self) -> None:
        self.between: Tensor | float = 0.0
        self.within: list[Tensor | float] = [0.0, 0.0]
        self.num_images = self.num_batches = 0

    def add(self, first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
        """Gram matrices n n of the layers of two models for one batch. ValueError for fewer than four images."""
        num_images = len(first[0])
        rule = f"the unbiased estimate needs at least {SMALLEST_BATCH} images"
        if num_images < SMALLEST_BATCH:
            raise ValueError(f"batch: {num_images} is not valid: {rule}")
        rows, columns = (
            torch.stack([centred_without_diagonal(gram) for gram in grams]).flatten(1) for grams in (first, second)
        )
        share = 1 / (num_images - 3)  # the estimate divides by n (n - 3); it is weighted by its n images
        self.between = self.between + share * rows @ columns.T
        for place, grams in enumerate((rows, columns)):
            self.within[place] = self.within[place] + share * grams.square().sum(dim=1)
        self.num_images += num_images
        self.num_batches += 1

    def similarity(self) -> Tensor:
        """CKA, `l k`; NaN for a layer whose features are the same for all images."""
        first, second = (torch.as_tensor(within).clamp(min=0).sqrt() for within in self.within)
        return torch.as_tensor(self.between) / (first[:, None] * second)


@check_arguments
def representation_similarity(
    first: nn.Module, second: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], *, exact: bool = False
) -> RepresentationSimilarity:
    """CKA of all pairs of layers; `batches` give the same images as each model wants them, `b 3 H W` twice.

    Each batch must be a random part of the images: batches of one class each compare within classes only. `exact` takes
    all images as one batch, and keeps their features for it: for small sets. Batches of fewer than four images are left
    out and counted. ValueError where no batch is left, Unsupported for models without known blocks.
    """
    models = (first,) if first is second else (first, second)
    names = [list(residual_blocks(model)) for model in models]
    kept: list[list[list[Tensor]]] = [[[] for _ in layers] for layers in names]
    sums, left_out = AlignmentSums(), 0
    for batch in batches:
        _check_pair(batch, models)
        if not exact and len(batch[0]) < SMALLEST_BATCH:
            left_out += len(batch[0])
            continue
        features = [layer_features(model, images, gram=not exact) for model, images in zip(models, batch, strict=False)]
        if not exact:
            sums.add(features[0], features[-1])
            continue
        for layers, new in zip(kept, features, strict=True):
            for layer, rows in zip(layers, new, strict=True):
                layer.append(rows)
    if exact and kept[0][0]:
        grams = [[gram_matrix(torch.cat(rows)) for rows in layers] for layers in kept]
        sums.add(grams[0], grams[-1])
    if not sums.num_batches:
        raise ValueError(f"batches: {left_out} images are not valid: no batch has {SMALLEST_BATCH} of them")
    return RepresentationSimilarity(
        similarity=sums.similarity(),
        first_layers=names[0],
        second_layers=names[-1],
        num_images=sums.num_images,
        num_batches=sums.num_batches,
        num_left_out=left_out,
    )


def _check_pair(batch: tuple[Tensor, Tensor], models: Sequence[nn.Module]) -> None:
    rule = "it must be the images twice, as each of the two models wants them"
    is_pair = isinstance(batch, (tuple, list)) and len(batch) == 2
    check(is_pair, "batches", type(batch).__name__ if not is_pair else "", rule)
    for model, images in zip((models[0], models[-1]), batch, strict=True):
        check_images(model, images)
    check(len(batch[0]) == len(batch[1]), "batches", (len(batch[0]), len(batch[1])), "as many images for both models")


@torch.no_grad()
def layer_features(model: nn.Module, images: Tensor, *, gram: bool) -> list[Tensor]:
    """The Gram matrix `b b` of every block's features, or these themselves, `b f`; on the CPU."""
    found: dict[str, Tensor] = {}

    def read(name: str, output: Tensor) -> None:
        flat = rearrange(output.detach(), "b ... -> b (...)")
        found[name] = gram_matrix(flat) if gram else flat.cpu()

    blocks = residual_blocks(model)
    with evaluating(model), forward_hooks(blocks, read):
        model(images)
    return [found[name] for name in blocks]


def gram_matrix(features: Tensor) -> Tensor:
    """Inner products of the rows of `n f`, `n n` in float64 on the CPU; the mean taken off first, for precision: the
    estimate does not depend on it.
    """
    features = features.double() if features.device.type != "mps" else features.cpu().double()
    centred = features - features.mean(dim=0)
    return (centred @ centred.T).cpu()


def centred_without_diagonal(gram: Tensor) -> Tensor:
    """The U-centred matrix of `n n` (Székely and Rizzo 2014): zero diagonal, rows and columns that sum to 0.

    The sum of products of two of them, divided by n (n - 3), is the unbiased estimate of HSIC.
    """
    count = len(gram)
    hollow = gram - torch.diag(gram.diagonal())
    rows = hollow.sum(dim=1)
    centred = hollow - (rows[:, None] + rows) / (count - 2) + rows.sum() / ((count - 1) * (count - 2))
    return centred - torch.diag(centred.diagonal())
