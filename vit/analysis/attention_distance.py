"""Mean attention distance of every head (ViT, figures 7 and 11; Raghu et al. 2021, figure 3), conventions stated.

The distance between a patch and the patches it attends to, weighted by the attention, averaged over patches and images.
Neither paper says how weight on the class token counts; here the convention is stated and the weight reported, so that
the effect of the choice can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from vit.analysis.profile import DISTANCES, ENOUGH_FOR_BARS, AttentionProfile, attention_profile
from vit.analysis.tokens import TokenLayout
from vit.config import check, check_arguments
from vit.evaluation.evaluate import Gather, one_process
from vit.evaluation.statistics import LEVEL, resampled_means

if TYPE_CHECKING:
    from vit.figures import HeadValues
    from vit.figures.style import Figure

Prefix = Literal["renormalised", "raw", "kept"]
PREFIXES = {
    "renormalised": "tokens without a place (class, registers) dropped as queries and as keys; the weights on patches "
    "made to sum to 1",
    "raw": "tokens without a place dropped as queries and as keys; the weights on patches left as they are",
    "kept": "tokens without a place kept as queries and as keys, at distance 0 from every token",
}
UNITS = {
    "pixels": "of the image that the model sees, between centres of patches",
    "patches": "pixels divided by the side of a patch (√(height × width) where it is not square)",
    "fraction": "pixels divided by the diagonal of what the patches cover",
    "interval": "95 %, Student's t over images",
    "uniform": "a head with equal weights on all tokens, by the same convention",
}
SORTED = {
    "sorted_pixels": "the heads of each block by their means, nearest first",
    "sorted_interval": "lower and upper ends, 95 %, percentile bootstrap over images; in each resample the heads are "
    "sorted anew",
}
"""Conventions of the sorted heads."""
RESAMPLES = 1000
_ENDS = torch.tensor([-1.0, 1.0], dtype=torch.float64)[:, None, None]


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionDistance:
    """Blocks × heads, float64: means over patches and images."""

    pixels: Tensor
    margin: Tensor
    """Half of the 95 % interval over images, pixels; NaN for a single image."""
    prefix_mass: Tensor
    """The weight on tokens that are no patches."""
    class_mass: Tensor
    uniform: float
    """Pixels, of a head with equal weights everywhere."""
    convention: str
    layout: TokenLayout
    layers: tuple[str, ...]
    num_images: int
    per_image: Tensor
    """Pixels, n l h in float32: the means over an image's patches."""

    @property
    def patches(self) -> Tensor:
        """In side lengths of a patch."""
        return self.pixels / math.sqrt(math.prod(self.layout.patch_size))

    @property
    def fraction(self) -> Tensor:
        """As a fraction of the diagonal of the area that the patches cover."""
        return self.pixels / math.hypot(*self.layout.covered)

    def sorted_heads(self) -> tuple[Tensor, Tensor]:
        """The heads of each block, nearest first, `l h` in pixels, and the 95 % intervals of these ranks, `2 l h`."""
        n, layers, heads = self.per_image.shape
        flat = self.per_image.double().flatten(1).numpy()
        means = torch.from_numpy(resampled_means(flat, num_resamples=RESAMPLES, seed=0))
        ranked = means.view(RESAMPLES, layers, heads).sort(dim=2).values
        ends = ranked.quantile((1 + _ENDS.flatten() * LEVEL) / 2, dim=0)
        return self.pixels.sort(dim=1).values, ends if n > 1 else ends * math.nan

    def plot(
        self, *, sort_heads: bool = False, against: AttentionDistance | None = None, titles: tuple[str, ...] = ("", "")
    ) -> Figure:
        """Draw a dot for each head above its block, or a line for each block through its heads, nearest first.

        `against`: another model's heads, drawn beside these; `titles` name the two.
        """
        from vit.figures import plot_heads_by_depth, plot_sorted_heads

        both = [self] if against is None else [self, against]
        draw = plot_sorted_heads if sort_heads else plot_heads_by_depth
        return draw([each._panel(sort_heads=sort_heads) for each in both], titles[: len(both)])

    def _panel(self, *, sort_heads: bool) -> HeadValues:
        from vit.figures import HeadValues

        values, ends = self.sorted_heads() if sort_heads else (self.pixels, self.pixels + self.margin * _ENDS)
        return HeadValues(
            values=values,
            label="mean attention distance (pixels)",
            interval=ends if self.num_images >= ENOUGH_FOR_BARS else None,
            reference=self.uniform,
            reference_label="uniform attention",
        )

    def numbers(self) -> dict[str, Any]:
        """All numbers and their conventions, for JSON."""
        tensors = ("pixels", "margin", "patches", "fraction", "prefix_mass", "class_mass")
        return {
            **{name: getattr(self, name).tolist() for name in tensors},
            "uniform_pixels": self.uniform,
            "images": self.num_images,
            "layers": list(self.layers),
            "grid": list(self.layout.grid),
            "patch_size": list(self.layout.patch_size),
            "prefix_tokens": self.layout.num_prefix,
            "conventions": {"distance": self.convention, **UNITS},
        }

    def sorted_numbers(self) -> dict[str, Any]:
        """`numbers`, and the sorted heads with their intervals."""
        numbers, (heads, ends) = self.numbers(), self.sorted_heads()
        numbers["conventions"] |= SORTED
        return numbers | {"sorted_pixels": heads.tolist(), "sorted_interval": ends.tolist()}


@check_arguments
def mean_attention_distance(
    model: nn.Module,
    images: Tensor | Iterable[Tensor],
    *,
    prefix: Prefix = "renormalised",
    without_self: bool = False,
    backend: str = "auto",
    gather: Gather = one_process,
) -> AttentionDistance:
    """The distance of every head over normalised images `b 3 H W`, or batches of them; any ViT, any grid.

    `prefix`: how tokens without a place count (`PREFIXES`). `without_self` (with "renormalised" only): the query patch
    does not count either. `backend`, `gather`: as in `attention_profile`. ValueError for other conventions and for what
    `attention_profile` refuses.
    """
    _check(prefix, without_self=without_self)
    profile = attention_profile(model, images, backend=backend, gather=gather)
    return distance_from_profile(profile, prefix=prefix, without_self=without_self)


@check_arguments
def distance_from_profile(
    profile: AttentionProfile, *, prefix: Prefix = "renormalised", without_self: bool = False
) -> AttentionDistance:
    """The distance by one of the conventions, from a profile, which holds the sums for all of them."""
    _check(prefix, without_self=without_self)
    layout = profile.layout
    renormalised = "distance_without_self" if without_self else "distance"
    name = renormalised if prefix == "renormalised" else "raw_distance"
    factor = layout.num_patches / (layout.num_patches + layout.num_prefix) if prefix == "kept" else 1.0
    return AttentionDistance(
        pixels=profile.mean(name) * factor,
        margin=profile.margin(name) * factor,
        prefix_mass=profile.mean("prefix_mass"),
        class_mass=profile.mean("class_mass"),
        uniform=uniform_distance(layout, prefix=prefix, without_self=without_self),
        convention=PREFIXES[prefix] + ("; without the patch that asks" if without_self else ""),
        layout=layout,
        layers=profile.layers,
        num_images=profile.num_images,
        per_image=profile.distances[:, DISTANCES.index(name)] * factor,
    )


@check_arguments
def uniform_distance(layout: TokenLayout, *, prefix: Prefix = "renormalised", without_self: bool = False) -> float:
    """The distance, in pixels, of equal weights on all tokens: 14×14 patches of 16 pixels give 116.4922, without self
    117.0896.

    Pairs of patches are counted by their offset, so no table of all pairs is made.
    """
    _check(prefix, without_self=without_self)
    (gh, gw), (ph, pw), n = layout.grid, layout.patch_size, layout.num_patches
    down, right = torch.arange(1 - gh, gh).double()[:, None], torch.arange(1 - gw, gw).double()
    pairs = (gh - down.abs()) * (gw - right.abs())
    mean = float((pairs * torch.hypot(down * ph, right * pw)).sum()) / n**2
    of_patches = n / (n + layout.num_prefix)
    if without_self:
        return mean * n / (n - 1) if n > 1 else 0.0
    return mean * {"renormalised": 1.0, "raw": of_patches, "kept": of_patches**2}[prefix]


def _check(prefix: str, *, without_self: bool) -> None:
    rule = 'it has an effect only with prefix "renormalised"'
    check(not without_self or prefix == "renormalised", "without_self", without_self, rule)
