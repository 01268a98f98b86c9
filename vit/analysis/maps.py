"""Maps of attention over the image: of a query, head by head; rollout; relevance to a class.

Rollout: Abnar and Zuidema 2020; relevance: Chefer et al. 2021 (generic attention, self-attention only). The gradient of
a map is computed from the gradient of the layer's output and the values, so that the model keeps its fused attention.
Tokens that are no patches (class, distillation, registers) stand first, and take part in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import torch
from einops import rearrange, reduce, repeat
from torch import Tensor, nn

from vit.analysis.capture import AttentionLayer, capture_attention
from vit.analysis.model_structure import check_images, crop_to_patches, logits_of, patch_grid, pools_patches
from vit.analysis.tokens import pictures_of, token_layout
from vit.analysis.unsupported import Unsupported
from vit.attention.core import attend
from vit.config import Grid, check, check_arguments
from vit.libraries.tokens import has_class_token

if TYPE_CHECKING:
    from vit.figures.style import Figure

MOST_ROWS = 6
"""Blocks whose head maps are drawn, evenly chosen."""
Query = Literal["class", "patches"] | tuple[int, int]
"""The class token, the mean of all patches (which a pooled model reads), or one patch (row, column)."""
CONVENTIONS = {
    "maps": "weights of the query on the patches, not renormalised; layer, image, head, row, column",
    "prefix_mass": "what the query gives to tokens that are no patches (class, distillation, registers)",
    "query": "'class': the class token; 'patches': the mean over all patches; [row, column]: one patch, from 0",
    "rollout": "product over layers, from the first, of (mean of the heads + identity), each row divided by its sum "
    "(Abnar and Zuidema 2020); modules that attend at once are one layer with the heads of all; tokens that are no "
    "patches take part, and are left out of the picture only",
    "relevance": "R = 1; R <- R + mean over heads of max(A * dy/dA, 0) R (Chefer et al. 2021), without the 1; y is the "
    "logit of the class",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionMaps:
    """`maps`: l b h gh gw, weights of the query on patches; `rollout`: b gh gw; `prefix_mass`: l b h."""

    maps: Tensor
    steps: tuple[str, ...]
    """For each of the layers, `AttentionLayer.step`: the same for those that compute at once, in one block."""
    rollout: Tensor
    prefix_mass: Tensor
    query: Query
    images: Tensor
    """b 3 H W, normalised: the part that the patches lie on."""

    @check_arguments
    def plot(self, image: int = 0, *, pixels: Tensor | None = None) -> Figure:
        """Draw one of the images beside the maps of its heads, of at most six blocks evenly chosen.

        `pixels` (uint8 `b 3 H W`) are drawn instead of the normalised images, whose colours are stretched.
        """
        from vit.figures import plot_head_maps

        depth, count = len(self.maps), len(self.images)
        check(-count <= image < count, "image", image, f"there are {count}, from 0 to {count - 1}")
        layers = torch.linspace(0, depth - 1, min(depth, MOST_ROWS)).round().int().tolist()
        picture = pictures_of(self.images, pixels)[image]
        query = self.query if isinstance(self.query, tuple) else None
        order = list(dict.fromkeys(self.steps))
        blocks = [order.index(self.steps[layer]) + 1 for layer in layers]
        return plot_head_maps(picture, self.maps[layers, image], blocks, query=query)

    def overlays(self) -> dict[str, Tensor]:
        """Maps to lay over the images, `b gh gw` each: the last block's, the mean of its heads, and the rollout."""
        last = self.maps[[step == self.steps[-1] for step in self.steps]]
        return {"last block": last.mean(dim=(0, 2)), "rollout": self.rollout}

    def plot_overlays(
        self, others: Mapping[str, Tensor] | None = None, *, pixels: Tensor | None = None, titles: Sequence[str] = ()
    ) -> Figure:
        """Draw `overlays` and `others` (`b gh gw` each) over every image, a row an image; `pixels` as in `plot`."""
        from vit.figures import plot_attention_overlays

        maps = self.overlays() | dict(others or {})
        return plot_attention_overlays(pictures_of(self.images, pixels), maps, titles)

    def numbers(self) -> dict[str, Any]:
        return {
            "query": list(self.query) if isinstance(self.query, tuple) else self.query,
            "prefix_mass": self.prefix_mass.tolist(),
            "rollout": self.rollout.tolist(),
            "maps": [[[[round(w, 6) for w in m.flatten().tolist()] for m in i] for i in layer] for layer in self.maps],
            "grid": list(self.maps.shape[3:]),
            "conventions": CONVENTIONS,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Relevance:
    """`maps` b gh gw: relevance of each patch to the image's class in `classes` (b,)."""

    maps: Tensor
    classes: Tensor
    images: Tensor
    """b 3 H W, normalised: the part that the patches lie on."""

    def plot(self, *, pixels: Tensor | None = None) -> Figure:
        """Draw the maps over every image, a row an image; `pixels` as in `AttentionMaps.plot`."""
        from vit.figures import plot_attention_overlays

        titles = [f"class {index}" for index in self.classes.tolist()]
        return plot_attention_overlays(pictures_of(self.images, pixels), {"relevance": self.maps}, titles)

    def numbers(self) -> dict[str, Any]:
        return {"classes": self.classes.tolist(), "maps": self.maps.tolist(), "conventions": CONVENTIONS}


@check_arguments
def attention_maps(model: nn.Module, images: Tensor, query: Query | None = None) -> AttentionMaps:
    """Maps of every layer and head and their rollout, of normalised images `b 3 H W`, with any captured model.

    `query` None: the class token, or the mean of the patches where there is none. Only the query's rows are kept, and
    one b n n table. ValueError for a query that the model does not have.
    """
    check_images(model, images)
    size = (images.shape[2], images.shape[3])
    grid = patch_grid(model, size)
    chosen = _checked_query(model, query, grid)
    maps, masses, steps, rolled = [], [], [], Rollout()

    def consume(layer: AttentionLayer) -> None:
        token_layout(model, size, layer.query.shape[2])  # raises where the tokens are not prefix and patches
        weights = layer.weights().float()
        steps.append(layer.step)
        rolled.add(weights, layer.step)
        rows = rows_of_query(weights, chosen, grid)  # b h m
        maps.append(_on_patches(rows, grid))
        masses.append(rows.sum(dim=-1) - maps[-1].sum(dim=(-2, -1)))

    with torch.no_grad():
        capture_attention(model, images, consume)
    return AttentionMaps(
        maps=torch.stack(maps).cpu(),
        steps=tuple(steps),
        rollout=_on_patches(rows_of_query(rolled.whole(), chosen, grid), grid).cpu(),
        prefix_mass=torch.stack(masses).cpu(),
        query=chosen,
        images=crop_to_patches(model, images).detach().cpu(),
    )


@check_arguments
def rollout(layers: Iterable[Tensor]) -> Tensor:
    """Multiply the maps `b h n n` of the layers, from the first, to `b n n`: the share of each first-layer token in
    each one of the last.

    Rows sum to 1. A row of zeros (a token that may attend to nothing) stays the token itself. ValueError: no layer.
    """
    rolled: Tensor | None = None
    for weights in layers:
        square = isinstance(weights, Tensor) and weights.dim() == 4 and weights.shape[2] == weights.shape[3]
        fits = square and (rolled is None or (weights.shape[0], *weights.shape[2:]) == rolled.shape)
        shape = tuple(getattr(weights, "shape", ())) or type(weights).__name__
        check(fits, "layers", shape, "each must be a map b h n n, all of as many images and tokens")
        rolled = extend_rollout(rolled, weights)
    if rolled is None:
        raise ValueError("rollout: [] is not valid: it needs the map of at least one layer")
    return rolled


class Rollout:
    """A rollout as layers come; modules of the same `step` are one layer with the heads of all."""

    def __init__(self) -> None:
        self.rolled: Tensor | None = None
        self.step = ""
        self.means: list[Tensor] = []

    def add(self, weights: Tensor, step: str) -> None:
        """The next module's map, `b h n n`."""
        if self.means and step != self.step:
            self.rolled, self.means = self.whole(), []
        self.step = step
        self.means.append(weights.mean(dim=1))

    def whole(self) -> Tensor:
        """The rollout so far, `b n n`; at least one map was added."""
        return extend_rollout(self.rolled, torch.stack(self.means, dim=1))


def extend_rollout(rolled: Tensor | None, weights: Tensor) -> Tensor:
    """Add one layer `b h n n` to a rollout `b n n` (None: the first layer), in float32 at least."""
    mean = reduce(weights.to(torch.promote_types(weights.dtype, torch.float32)), "b h n m -> b n m", "mean")
    with_skip = mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
    step = with_skip / with_skip.sum(dim=-1, keepdim=True)  # of every row, which is the last axis
    return step if rolled is None else step @ rolled


@check_arguments
def relevance(model: nn.Module, images: Tensor, classes: Tensor | None = None) -> Relevance:
    """Relevance of each patch of normalised images `b 3 H W` to `classes` (b,), by default the predicted ones.

    Needs one backward pass and every layer's vectors at once. ValueError for a class that the model does not have,
    Unsupported for a model without logits.
    """
    check_images(model, images)
    size = (images.shape[2], images.shape[3])
    grid = patch_grid(model, size)
    layers: list[AttentionLayer] = []
    with torch.enable_grad():
        logits = logits_of(capture_attention(model, images.detach().clone().requires_grad_(), layers.append))
        chosen = logits.argmax(dim=1) if classes is None else _checked_classes(classes, logits)
        score = logits.gather(1, chosen[:, None]).sum()
        gradients = torch.autograd.grad(score, [layer.output for layer in layers], allow_unused=True)
    for layer in layers:
        token_layout(model, size, layer.query.shape[2])  # raises where the tokens are not prefix and patches
    spread = one = torch.eye(layers[0].query.shape[2], device=images.device)
    for _, together in groupby(zip(layers, gradients, strict=True), key=lambda pair: pair[0].step):
        step = torch.stack([_relevance_step(layer, gradient) for layer, gradient in together]).mean(dim=0)
        spread = spread + step @ spread
    spread = spread - one
    query: Query = "class" if has_class_token(model) and not pools_patches(model) else "patches"
    return Relevance(
        maps=_on_patches(rows_of_query(spread, query, grid), grid).cpu(),
        classes=chosen.cpu(),
        images=crop_to_patches(model, images).detach().cpu(),
    )


def _checked_classes(classes: Tensor, logits: Tensor) -> Tensor:
    count, known = logits.shape
    fits = classes.shape == (count,) and not classes.is_floating_point() and not classes.is_complex()
    rule = f"it must be one class an image, whole numbers from 0 to {known - 1}, of the shape ({count},)"
    check(fits and all(0 <= each < known for each in classes.tolist()), "classes", classes.tolist(), rule)
    return classes.long().to(logits.device)


def rows_of_query(weights: Tensor, query: Query, grid: Grid) -> Tensor:
    """The rows of a query in `… n m`, `… m`; patches are the last gh gw tokens."""
    first = weights.shape[-2] - grid[0] * grid[1]
    if query == "class":
        return weights[..., 0, :]
    if query == "patches":
        return weights[..., first:, :].mean(dim=-2)
    return weights[..., first + query[0] * grid[1] + query[1], :]


def weights_gradient(layer: AttentionLayer, gradient: Tensor) -> Tensor:
    """The gradient of a scalar by the layer's map, `b h n m`, from its gradient by the layer's output, `b n c`."""
    q, k, v = (vectors.detach() for vectors in (layer.query, layer.key, layer.value))
    bias = None if layer.bias is None else layer.bias.detach()
    with torch.enable_grad():
        attended = attend(q, k, v, mask=layer.mask, bias=bias, scale=layer.scale)
        attended = attended.detach().requires_grad_()
        (of_attended,) = torch.autograd.grad(layer.finish(attended, slice(None)), attended, gradient)
    values = repeat(v, "b g m v -> b (g times) m v", times=q.shape[1] // v.shape[1])
    return of_attended @ values.mT


@torch.no_grad()
def _relevance_step(layer: AttentionLayer, gradient: Tensor | None) -> Tensor:
    if gradient is None:
        raise Unsupported(f"relevance: {layer.name} is not valid: the class does not depend on what it gave")
    weights = layer.weights()
    return reduce((weights * weights_gradient(layer, gradient)).clamp(min=0), "b h n m -> b n m", "mean").float()


def _on_patches(rows: Tensor, grid: Grid) -> Tensor:
    """`… m` to `… gh gw`: the last gh gw tokens."""
    return rearrange(rows[..., rows.shape[-1] - grid[0] * grid[1] :], "... (gh gw) -> ... gh gw", gh=grid[0])


def _checked_query(model: nn.Module, query: Query | None, grid: Grid) -> Query:
    has_class = has_class_token(model)
    if query is None:
        return "class" if has_class else "patches"
    if not isinstance(query, str):
        query = (query[0], query[1])  # which may be a list, as `numbers` gives it
        inside = all(0 <= place < size for place, size in zip(query, grid, strict=True))
        check(inside, "query", query, f"the patches are numbered from (0, 0) to ({grid[0] - 1}, {grid[1] - 1})")
    check(query != "class" or has_class, "query", query, "the model has no class token; choose 'patches' or one patch")
    return query
