"""Filters of the first layer: principal components of the patch embedding's weights (ViT, figure 7, left)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.analysis.model_structure import pixel_weights
from vit.config import check_arguments, check_positive

if TYPE_CHECKING:
    from vit.figures.style import Figure

NUM_SHOWN = 28
"""The paper shows as many."""
CONVENTIONS = {
    "filters": "right singular vectors of the weights, one output channel a row, centred over the output channels; "
    "unit norm; the entry of largest magnitude is positive",
    "explained": "share of the weights' variance",
    "picture": "each component from its own least to its own greatest value, over the three colours together",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class PatchFilters:
    """The first principal components, `k ph pw 3`, and the share of the variance of each, `k`."""

    filters: Tensor
    explained: Tensor
    layer: str

    def stretched(self) -> Tensor:
        """Between 0 and 1, each component stretched on its own."""
        low, high = (getattr(self.filters, which)(dim=(1, 2, 3), keepdim=True) for which in ("amin", "amax"))
        return (self.filters - low) / (high - low).clamp(min=torch.finfo(self.filters.dtype).tiny)

    def plot(self, title: str = "") -> Figure:
        """Draw each component as a small image."""
        from vit.figures import plot_patch_filters

        return plot_patch_filters(self.stretched(), title)

    def numbers(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "explained": self.explained.tolist(),
            "explained_together": float(self.explained.sum()),
            "filters": [[round(v, 5) for v in row] for row in self.filters.flatten(1).tolist()],
            "shape": list(self.filters.shape),
            "conventions": CONVENTIONS,
        }


@check_arguments
def patch_filters(model: nn.Module, count: int = NUM_SHOWN) -> PatchFilters:
    """The first `count` principal components of the layer that reads the pixels, of a model of any library.

    Fewer where the weights have no more. Unsupported where no layer reads 3 channels.
    """
    check_positive("count", count)
    name, weights = pixel_weights(model)
    filters, explained = principal_components(weights, count)
    return PatchFilters(filters=filters, explained=explained, layer=name)


@torch.no_grad()
def principal_components(weight: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Components `k ph pw 3` of weights `c 3 ph pw`, and their shares of the variance `k`, in float64."""
    height, width = weight.shape[2:]
    rows = rearrange(weight.detach().cpu().double(), "c rgb ph pw -> c (ph pw rgb)")
    _, values, components = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)
    count = min(count, int((values > values[0] * 1e-12).sum()))
    components = components[:count]
    largest = components.gather(1, components.abs().argmax(dim=1, keepdim=True))
    shown = rearrange(components * largest.sign(), "k (ph pw rgb) -> k ph pw rgb", ph=height, pw=width)
    return shown, (values.square() / values.square().sum())[:count]
