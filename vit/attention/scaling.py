"""Why dot products are divided by √d: the scores of ever wider random vectors, and the softmax's gradient at them.

Vaswani et al. 2017, section 3.2.1. A measurement, not a layer; `notebooks/score_scaling.py` measures the effect on
learning. Notation: see `core.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vit.attention.core import DOT_PRODUCT
from vit.attention.scores import Score


@dataclass(frozen=True)
class ScoreSpread:
    """Result of `score_spread`: the variance of the scores, and the median over queries of `softmax_gradient`."""

    variance: float
    gradient: float


def score_spread(
    width: int, *, score: Score = DOT_PRODUCT, scale: float | None = None, num_queries: int = 512, num_keys: int = 32
) -> ScoreSpread:
    """Measure scores of vectors of `width` independent normal numbers, with a fixed seed; each query has its own keys.

    Unscaled dot products (`scale=1`) have variance d: d products of variance 1 each.
    """
    generator = torch.Generator().manual_seed(width)
    query, key = (torch.randn(num_queries, 1, count, width, generator=generator) for count in (1, num_keys))
    with torch.no_grad():
        scores = score(query, key, scale)
    return ScoreSpread(scores.var().item(), softmax_gradient(scores.softmax(dim=-1)).median().item())


def softmax_gradient(weights: Tensor) -> Tensor:
    """Sensitivity of the weights to the scores: the Frobenius norm of softmax's Jacobian, `... m -> ...`.

    The Jacobian is `diag(p) - p pᵀ`, its norm `√(Σ pᵢ² (1 - pᵢ)² + Σ_{i≠j} pᵢ² pⱼ²)`: at most ½, and 0
    where one key has all the weight.
    """
    squares = weights.square()
    others = squares.sum(dim=-1, keepdim=True) - squares
    return (squares * ((1 - weights).square() + others)).sum(dim=-1).sqrt()
