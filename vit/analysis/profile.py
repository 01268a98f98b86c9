"""Attention of every head of every block on average: distance, entropy, mass on the class token and on itself.

One pass over the images. Statistics are streamed, so no map of all weights exists at any time; sums over images are
kept, to which several processes add theirs, and of each image one number a head and kind of distance, to resample. A
head's value for an image is the mean over the patches as queries; class and register tokens are no queries here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange, reduce
from torch import Tensor, nn

from vit.analysis.capture import AttentionLayer, capture_attention
from vit.analysis.model_structure import image_batches
from vit.analysis.tokens import TokenLayout, token_layout
from vit.attention.statistics import STATISTICS_BACKENDS, attention_statistics
from vit.config import check, check_arguments, nearest
from vit.evaluation.evaluate import Gather, one_process

if TYPE_CHECKING:
    from vit.figures import HeadValues
    from vit.figures.style import Figure

QUANTITIES = {
    "distance": "expected distance to the patches attended to, pixels, the weights on them made to sum to 1",
    "distance_without_self": "the same without the patch that asks",
    "raw_distance": "sum of weight × distance over the patches, pixels; weights on other tokens count as distance 0",
    "entropy": "of the weights on all tokens, nats",
    "class_mass": "weight on the class token",
    "prefix_mass": "weight on all tokens that are no patches: class, distillation, registers",
    "self_mass": "weight of a patch on itself: the map's diagonal",
}
"""Each a mean over the patches as queries, then over images."""
ENOUGH_FOR_BARS = 8
"""Images from which on intervals are drawn; of fewer they are as wide as the figure."""
DISTANCES = ("distance", "distance_without_self", "raw_distance")
"""Those that are kept of each image."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionProfile:
    """Means over images with their intervals, blocks × heads each (l h)."""

    layout: TokenLayout
    layers: tuple[str, ...]
    """Names of the attention modules, in the order of the pass."""
    num_images: int
    sums: Tensor
    """Sums of the images' values, q l h in float64, in the order of `QUANTITIES`."""
    squares: Tensor
    """Sums of their squares, q l h."""
    distances: Tensor
    """The distances in each image, n q l h in float32, in the order of `DISTANCES`."""

    def mean(self, name: str) -> Tensor:
        """One of `QUANTITIES`, l h."""
        return self.sums[_index(name)] / self.num_images

    def margin(self, name: str) -> Tensor:
        """Half of the 95 % interval of the mean over images (Student's t), l h; NaN for a single image."""
        from scipy.special import stdtrit

        n, mean = self.num_images, self.mean(name)
        if n < 2:
            return torch.full_like(mean, math.nan)
        variance = (self.squares[_index(name)] - n * mean.square()).clamp(min=0.0) / (n - 1)
        return (variance / n).sqrt() * float(stdtrit(n - 1, 0.975))

    @property
    def uniform_entropy(self) -> float:
        """Nats, with equal weights on all tokens."""
        return math.log(self.layout.num_patches + self.layout.num_prefix)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each head: every quantity and its interval."""
        values = {name: (self.mean(name), self.margin(name)) for name in QUANTITIES}
        return [
            {"layer": layer + 1, "head": head + 1, "module": name}
            | {key: float(mean[layer, head]) for key, (mean, _) in values.items()}
            | {f"{key}.margin": float(margin[layer, head]) for key, (_, margin) in values.items()}
            for layer, name in enumerate(self.layers)
            for head in range(self.sums.shape[2])
        ]

    def plot(self) -> Figure:
        """Draw each head's entropy, and the weights of a patch on itself and on tokens that are no patches."""
        from vit.figures import plot_heads_by_depth

        layout = self.layout
        panels = {
            "entropy": replace(
                self._panel("entropy", "entropy (nats)", self.uniform_entropy),
                reference=self.uniform_entropy,
                reference_label="uniform attention",
            ),
            "diagonal": self._panel("self_mass", "weight of a patch on itself", 1.0),
        }
        if layout.has_class_token:
            panels["class token"] = self._panel("class_mass", "weight on the class token", 1.0)
        if layout.num_prefix > int(layout.has_class_token):
            panels["class token, registers"] = self._panel("prefix_mass", "weight on non-patches", 1.0)
        return plot_heads_by_depth(list(panels.values()), list(panels))

    def _panel(self, name: str, label: str, largest: float = math.inf) -> HeadValues:
        """One of `QUANTITIES` to be drawn, with its intervals where there are images enough for them."""
        from vit.figures import HeadValues

        mean, margin = self.mean(name), self.margin(name)
        ends = torch.stack((mean - margin, mean + margin)) if self.num_images >= ENOUGH_FOR_BARS else None
        return HeadValues(values=mean, label=label, interval=ends, largest=largest)


@check_arguments
def attention_profile(
    model: nn.Module, images: Tensor | Iterable[Tensor], *, backend: str = "auto", gather: Gather = one_process
) -> AttentionProfile:
    """The profile over normalised images `b 3 H W`, or over batches of them, all of one size.

    `backend`: that of `attention_statistics`; `compiled` is the fastest for many large images on a CPU. `gather` joins
    what processes have along the first axis, each process giving its share of the images. ValueError where there are no
    images and for what `capture_attention` and `token_layout` refuse.
    """
    choices = ["auto", *STATISTICS_BACKENDS]
    check(backend in choices, "backend", backend, nearest(backend, choices))
    sums = _RunningSums(backend)
    for batch in image_batches(model, images):
        sums.add(model, batch)
    assert sums.layout is not None
    totals = torch.stack((sums.total, sums.squares))  # 2 q l h
    distances = torch.cat(sums.distances)  # n q l h
    counts = torch.tensor([sums.count], device=totals.device)
    total, squares = gather(totals[None]).sum(dim=0).cpu()
    return AttentionProfile(
        layout=sums.layout,
        layers=tuple(sums.names),
        num_images=int(gather(counts).sum()),
        sums=total,
        squares=squares,
        distances=gather(distances).cpu(),
    )


class _RunningSums:
    """Sums over the images so far."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.layout: TokenLayout | None = None
        self.names: list[str] = []
        self.count = 0
        self.total = self.squares = torch.zeros(())
        self.distances: list[Tensor] = []

    def add(self, model: nn.Module, images: Tensor) -> None:
        rows: list[Tensor] = []
        self.names = []

        def consume(layer: AttentionLayer) -> None:
            height, width = images.shape[-2:]
            if self.layout is None:
                self.layout = token_layout(model, (height, width), layer.query.shape[2])
            rule = f"all must be of the first one's size, {self.layout.image_size}"
            check(self.layout.image_size == (height, width), "images", (height, width), rule)
            rows.append(profile_of_layer(layer, self.layout, self.backend))
            self.names.append(layer.name)

        with torch.no_grad():
            capture_attention(model, images, consume)
        values = rearrange(rows, "l q b h -> b q l h").double()
        self.total = self.total.to(values.device) + values.sum(dim=0)
        self.squares = self.squares.to(values.device) + values.square().sum(dim=0)
        self.distances.append(values[:, [_index(name) for name in DISTANCES]].float())
        self.count += len(images)


def profile_of_layer(layer: AttentionLayer, layout: TokenLayout, backend: str = "auto") -> Tensor:
    """Each of `QUANTITIES` for every image and head, q b h."""
    device = layer.query.device
    statistics = attention_statistics(
        layer.query,
        layer.key,
        coordinates=layout.coordinates(device),
        key_groups=layout.groups(device),
        mask=layer.mask,
        bias=layer.bias,
        scale=layer.scale,
        backend=backend,
    )
    assert statistics.distance is not None
    assert statistics.self_mass is not None
    found = {
        "distance": statistics.renormalised_distance(),
        "distance_without_self": statistics.renormalised_distance(without_self=True),
        "raw_distance": statistics.distance,
        "entropy": statistics.entropy,
        "class_mass": statistics.mass["class"],
        "prefix_mass": statistics.mass["prefix"],
        "self_mass": statistics.self_mass,
    }
    patches = [found[name][:, :, layout.num_prefix :] for name in QUANTITIES]
    return reduce(patches, "q b h n -> q b h", "mean")


def _index(name: str) -> int:
    assert name in QUANTITIES, name
    return list(QUANTITIES).index(name)
