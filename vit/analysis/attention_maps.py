"""Where a model looks: a query's attention over the image, head by head; rollout; relevance to a class.

Rollout: Abnar and Zuidema 2020; relevance: Chefer et al. 2021 (generic attention, self-attention only), whose gradient
of a map is made of the gradient of the layer's output and the values, so that the model keeps its fused attention.
Tokens that are no patches (class, distillation, registers) stand first, and take part in both. Knows no pictures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from einops import rearrange, reduce, repeat
from torch import Tensor, nn

from vit.analysis.capture import AttentionLayer, capture
from vit.analysis.parts import Grid, answer_of, has_class_token, patch_grid
from vit.attention.attend import attend
from vit.config import check

Query = Literal["class", "patches"] | tuple[int, int]
"""Whose attention: the class token's, the mean of all patches' (what a pooled model reads), or one patch's."""
CONVENTIONS = {
    "maps": "weights of the query on the patches, not renormalised; layer, image, head, row, column",
    "prefix_mass": "what the query gives to tokens that are no patches (class, distillation, registers)",
    "query": "'class': the class token; 'patches': the mean over all patches; [row, column]: one patch, from 0",
    "rollout": "product over layers, from the first, of (mean of the heads + identity), each row divided by its sum "
    "(Abnar and Zuidema 2020); tokens that are no patches take part, and are left out of the picture only",
    "relevance": "R = 1; R <- R + mean over heads of max(A * dy/dA, 0) R (Chefer et al. 2021), without the 1; y is the "
    "logit of the class",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionMaps:
    """`maps`: l b h gh gw, weights of the query on patches; `rollout`: b gh gw; `prefix_mass`: l b h."""

    maps: Tensor
    rollout: Tensor
    prefix_mass: Tensor
    query: Query

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
    """`maps` b gh gw: how much each patch speaks for the image's class in `classes` (b,)."""

    maps: Tensor
    classes: Tensor

    def numbers(self) -> dict[str, Any]:
        return {"classes": self.classes.tolist(), "maps": self.maps.tolist(), "conventions": CONVENTIONS}


def attention_maps(model: nn.Module, images: Tensor, query: Query | None = None) -> AttentionMaps:
    """Maps of every layer and head and their rollout, of normalised images `b 3 H W`, with any captured model.

    `query` None: the class token, or the mean of the patches where there is none. Only the query's rows are kept, and
    one b n n table. ValueError for a query that the model does not have.
    """
    grid = patch_grid(model, (images.shape[2], images.shape[3]))
    chosen = _checked_query(model, query, grid)
    maps, masses, rolled = [], [], None

    def consume(layer: AttentionLayer) -> None:
        nonlocal rolled
        weights = layer.weights().float()
        rolled = roll(rolled, weights)
        rows = rows_of(weights, chosen, grid)  # b h m
        maps.append(_on_patches(rows, grid))
        masses.append(rows.sum(dim=-1) - maps[-1].sum(dim=(-2, -1)))

    with torch.no_grad():
        capture(model, images, consume)
    assert rolled is not None
    return AttentionMaps(
        maps=torch.stack(maps).cpu(),
        rollout=_on_patches(rows_of(rolled, chosen, grid), grid).cpu(),
        prefix_mass=torch.stack(masses).cpu(),
        query=chosen,
    )


def rollout(layers: Iterable[Tensor]) -> Tensor:
    """Maps `b h n n` of the layers, from the first, to `b n n`: what the last one's tokens drew from the first one's.

    Rows sum to 1. A row of zeros (a token that may attend to nothing) stays the token itself. ValueError: no layer.
    """
    rolled = None
    for weights in layers:
        rolled = roll(rolled, weights)
    if rolled is None:
        raise ValueError("rollout: [] is not valid: it needs the map of at least one layer")
    return rolled


def roll(rolled: Tensor | None, weights: Tensor) -> Tensor:
    """One layer `b h n n` more on `b n n` (None: nothing yet), in float32 at least."""
    mean = reduce(weights.to(torch.promote_types(weights.dtype, torch.float32)), "b h n m -> b n m", "mean")
    with_skip = mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
    step = with_skip / with_skip.sum(dim=-1, keepdim=True)  # of every row, which is the last axis
    return step if rolled is None else step @ rolled


def relevance(model: nn.Module, images: Tensor, classes: Tensor | None = None) -> Relevance:
    """What each patch of normalised images `b 3 H W` says for a class, `classes` (b,) or the model's own answers.

    Needs one backward pass and every layer's vectors at once. ValueError for a model without logits.
    """
    grid = patch_grid(model, (images.shape[2], images.shape[3]))
    layers: list[AttentionLayer] = []
    with torch.enable_grad():
        logits = answer_of(capture(model, images.detach().clone().requires_grad_(), layers.append))
        chosen = logits.argmax(dim=1) if classes is None else classes.to(logits.device)
        score = logits.gather(1, chosen[:, None]).sum()
        gradients = torch.autograd.grad(score, [layer.output for layer in layers], allow_unused=True)
    spread = None
    for layer, gradient in zip(layers, gradients, strict=True):
        if gradient is None:
            raise ValueError(f"relevance: {layer.name} is not valid: the class does not depend on what it gave")
        spread = _relevance_step(spread, layer, gradient)
    assert spread is not None
    spread = spread - torch.eye(spread.shape[-1], device=spread.device)
    query: Query = "class" if has_class_token(model) else "patches"
    return Relevance(maps=_on_patches(rows_of(spread, query, grid), grid).cpu(), classes=chosen.cpu())


def rows_of(weights: Tensor, query: Query, grid: Grid) -> Tensor:
    """The rows of a query in `… n m`, `… m`; patches are the last gh gw tokens."""
    first = weights.shape[-2] - grid[0] * grid[1]
    if query == "class":
        return weights[..., 0, :]
    if query == "patches":
        return weights[..., first:, :].mean(dim=-2)
    return weights[..., first + query[0] * grid[1] + query[1], :]


def weights_gradient(layer: AttentionLayer, gradient: Tensor) -> Tensor:
    """Of a scalar by the layer's map, `b h n m`, from its gradient by the layer's output, `b n c`."""
    q, k, v = (vectors.detach() for vectors in (layer.query, layer.key, layer.value))
    with torch.enable_grad():
        attended = attend(q, k, v, mask=layer.mask, bias=_detached(layer.bias), scale=layer.scale)
        attended = attended.detach().requires_grad_()
        (of_attended,) = torch.autograd.grad(layer.finish(attended, slice(None)), attended, gradient)
    values = repeat(v, "b g m v -> b (g times) m v", times=q.shape[1] // v.shape[1])
    return of_attended @ values.mT


@torch.no_grad()
def _relevance_step(spread: Tensor | None, layer: AttentionLayer, gradient: Tensor) -> Tensor:
    weights = layer.weights()
    step = reduce((weights * weights_gradient(layer, gradient)).clamp(min=0), "b h n m -> b n m", "mean").float()
    one = torch.eye(step.shape[-1], device=step.device)
    return one + step if spread is None else spread + step @ spread


def _on_patches(rows: Tensor, grid: Grid) -> Tensor:
    """`… m` to `… gh gw`: the last gh gw tokens."""
    return rearrange(rows[..., rows.shape[-1] - grid[0] * grid[1] :], "... (gh gw) -> ... gh gw", gh=grid[0])


def _checked_query(model: nn.Module, query: Query | None, grid: Grid) -> Query:
    has_class = has_class_token(model)
    if query is None:
        return "class" if has_class else "patches"
    if isinstance(query, tuple):
        inside = all(0 <= place < size for place, size in zip(query, grid, strict=True))
        check(inside, "query", query, f"the patches are numbered from (0, 0) to ({grid[0] - 1}, {grid[1] - 1})")
    check(query != "class" or has_class, "query", query, "the model has no class token; choose 'patches' or one patch")
    return query


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()
