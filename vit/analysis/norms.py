"""Norms of the tokens by depth, and artefacts: patches with outlying norms, and where they lie in the image.

Darcet et al. 2024, "Vision transformers need registers": large ViTs that were trained long turn some patches of the
background into a store of what belongs to the whole image; their norms after the later blocks are several times the
others'. Registers, tokens without a place, take that over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vit.analysis.model_structure import forward_hooks, image_batches, residual_blocks
from vit.analysis.tokens import TokenLayout, block_tokens, token_layout
from vit.config import check, check_arguments
from vit.config.arguments import check_type
from vit.evaluation.evaluate import evaluating

if TYPE_CHECKING:
    from vit.figures.style import Figure

OUTLIER = 3.0
"""Times the median norm of its image's patches, above which a patch is an outlier."""
_LOWEST, _DECADES, _BINS = -4, 12, 100
"""Norms are counted in bins of a hundredth of a decade from 10⁻⁴ on; those beyond the ends in the last bins."""
QUANTILES = (0.05, 0.5, 0.95)
CONVENTIONS = {
    "norms": "Euclidean, of the residual stream after each block, before the model's last norm",
    "quantiles": "of the patches' norms over all patches and images, to 1.2 % (bins of a hundredth of a decade)",
    "outlier": f"a patch whose norm is more than {OUTLIER:g} times the median of the patches of its image after that "
    "block",
    "outlier_map": "share of the images in which the patch at that place is an outlier, gh gw, after `outlier_block`: "
    "the one with the most of them",
    "border_share": "of those outliers, how many lie at the edge of the grid; by chance: the patches that do",
    "class": "mean norm of the class token over images; `others`: of every other token that is no patch, l r",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenNorms:
    """Norms after every block, over images."""

    counts: Tensor
    """Patches in each bin of their norm, l bins."""
    outliers: Tensor
    """Share of the images in which the patch of a place is an outlier, l gh gw."""
    highest: Tensor
    """The highest norm of a patch, l."""
    class_norm: Tensor
    """Mean over images, l; NaN without a class token."""
    other_norms: Tensor
    """Mean over images of each other token that is no patch, l r."""
    layers: list[str]
    num_images: int

    @property
    def outlier_share(self) -> Tensor:
        """The share of all patches that are outliers, l."""
        return self.outliers.mean(dim=(1, 2))

    @property
    def outlier_block(self) -> int:
        """From 0: the block with the most outliers, the last of equal ones."""
        share = self.outlier_share
        return len(share) - 1 - int(share.flip(0).argmax())

    def quantile(self, share: float) -> Tensor:
        """The norm below which that share of the patches lies, l: the middle of its bin. ValueError outside 0 … 1."""
        check_type("share", share, float)
        check(0 <= share <= 1, "share", share, "it is a fraction of the patches, from 0 to 1")
        below = self.counts.double().cumsum(dim=1) / self.counts.sum(dim=1, keepdim=True)
        before = (below < share) | (below == 0)  # of share 0: up to the first bin that holds a patch
        places = before.sum(dim=1).clamp(max=self.counts.shape[1] - 1)
        return 10 ** (_LOWEST + (places.double() + 0.5) / _BINS)

    def border_share(self) -> tuple[float, float]:
        """The share of the outliers of `outlier_block` at the grid's edge (NaN without any), and that by chance."""
        shares = self.outliers[self.outlier_block]
        edge = torch.ones_like(shares)
        edge[1:-1, 1:-1] = 0
        total = float(shares.sum())
        return float((shares * edge).sum()) / total if total else float("nan"), float(edge.mean())

    def plot(self) -> Figure:
        """Draw the norms by block, the share of outliers by block, and where in the image they lie."""
        from vit.figures import plot_token_norms

        steps = torch.arange(_BINS * _DECADES + 1, dtype=torch.float64)
        return plot_token_norms(
            self.counts,
            10 ** (_LOWEST + steps / _BINS),
            {"class token": self.class_norm, "other tokens": self.other_norms},
            self.outlier_share,
            self.outliers[self.outlier_block],
            self.outlier_block + 1,
        )

    def numbers(self) -> dict[str, Any]:
        border, chance = self.border_share()
        return {
            "layers": self.layers,
            "quantiles": {str(share): self.quantile(share).tolist() for share in QUANTILES},
            "highest": self.highest.tolist(),
            "class": self.class_norm.tolist(),
            "others": self.other_norms.tolist(),
            "outlier_share": self.outlier_share.tolist(),
            "outlier_block": self.outlier_block,
            "outlier_map": self.outliers[self.outlier_block].tolist(),
            "border_share": border,
            "chance_border_share": chance,
            "num_images": self.num_images,
            "conventions": CONVENTIONS,
        }


@check_arguments
def token_norms(model: nn.Module, batches: Tensor | Iterable[Tensor]) -> TokenNorms:
    """Norms after every block over batches of normalised images `b 3 H W`, all of one size.

    Counts are kept, and no norms: memory does not grow with the images. ValueError without images, Unsupported for a
    model without known blocks and for one without tokens.
    """
    blocks = residual_blocks(model)
    sums = [_Sums() for _ in blocks]
    by_name = dict(zip(blocks, sums, strict=True))
    layout: TokenLayout | None = None
    num_images = 0
    for images in image_batches(model, batches):
        size = (images.shape[2], images.shape[3])
        rule = f"all must be of the first one's size, {layout.image_size if layout else size}"
        check(layout is None or layout.image_size == size, "batches", size, rule)
        for name, norms in _norms_after(model, images).items():
            layout = layout or token_layout(model, size, norms.shape[1])
            by_name[name].add(norms, layout)
        num_images += len(images)
    assert layout is not None  # there was an image, and there are blocks
    first = int(layout.has_class_token)
    prefix = torch.stack([each.prefix for each in sums]) / num_images  # l r
    return TokenNorms(
        counts=torch.stack([each.counts for each in sums]),
        outliers=torch.stack([each.outliers for each in sums]).view(-1, *layout.grid) / num_images,
        highest=torch.stack([each.highest for each in sums]),
        class_norm=prefix[:, 0] if first else torch.full((len(sums),), float("nan"), dtype=torch.float64),
        other_norms=prefix[:, first:],
        layers=list(blocks),
        num_images=num_images,
    )


@dataclass(eq=False)
class _Sums:
    """The sums of one block over the images so far."""

    counts: Tensor = field(default_factory=lambda: torch.zeros(_BINS * _DECADES, dtype=torch.int64))
    outliers: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    highest: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    prefix: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))

    def add(self, norms: Tensor, layout: TokenLayout) -> None:
        prefix, patches = norms.split((layout.num_prefix, layout.num_patches), dim=1)
        bins = ((patches.clamp(min=1e-30).log10() - _LOWEST) * _BINS).long().clamp(0, len(self.counts) - 1)
        self.counts += torch.bincount(bins.flatten(), minlength=len(self.counts))
        medians = patches.quantile(0.5, dim=1, keepdim=True)
        self.outliers = self.outliers + (patches > OUTLIER * medians).double().sum(dim=0)
        self.highest = torch.maximum(self.highest, patches.max())
        self.prefix = self.prefix + prefix.sum(dim=0)


@torch.no_grad()
def _norms_after(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """The norm of every token after each block, `b n` in float64 on the CPU."""
    found: dict[str, Tensor] = {}

    def read(name: str, output: Tensor) -> None:
        found[name] = block_tokens(model, output).double().norm(dim=-1).cpu()

    with evaluating(model), forward_hooks(residual_blocks(model), read):
        model(images)
    return found
