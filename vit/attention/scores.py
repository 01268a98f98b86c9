"""Scores: how alike a query and a key are.

A score is called with `(query, key, scale)` and gives `b h n m`; that call is its definition, written to be
read. A score that is an inner product of vectors also says which (`vectors`), and then the fast backends can
use it. Letters: see `attend.py`. This room does not know about masks, softmax or values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import normalize


class Score(Protocol):
    """`b h n d, b h m d -> b h n m`; `scale` None means the score's own default."""

    def __call__(self, query: Tensor, key: Tensor, scale: float | None) -> Tensor: ...


@runtime_checkable
class InnerProduct(Score, Protocol):
    """A score that equals `factor * queryᵀkey` of the vectors it names."""

    def vectors(self, query: Tensor, key: Tensor, scale: float | None) -> tuple[Tensor, Tensor, float]: ...


@dataclass(frozen=True)
class ScaledDotProduct:
    """`scale * qᵀk`, by default `1/√d` so that unit-variance vectors give unit-variance scores (Vaswani et
    al. 2017).
    """

    def __call__(self, query: Tensor, key: Tensor, scale: float | None) -> Tensor:
        query, key, factor = self.vectors(query, key, scale)
        return torch.einsum("b h n d, b h m d -> b h n m", query, key) * factor

    def vectors(self, query: Tensor, key: Tensor, scale: float | None) -> tuple[Tensor, Tensor, float]:
        return query, key, query.shape[-1] ** -0.5 if scale is None else scale


@dataclass(frozen=True)
class Cosine:
    """`scale * qᵀk / (|q| |k|)`, by default unscaled."""

    def __call__(self, query: Tensor, key: Tensor, scale: float | None) -> Tensor:
        query, key, factor = self.vectors(query, key, scale)
        return torch.einsum("b h n d, b h m d -> b h n m", query, key) * factor

    def vectors(self, query: Tensor, key: Tensor, scale: float | None) -> tuple[Tensor, Tensor, float]:
        return normalize(query, dim=-1), normalize(key, dim=-1), 1.0 if scale is None else scale


@dataclass(frozen=True)
class Constant:
    """Every key alike: attention becomes the average of the values that the mask allows. It takes no
    scale.
    """

    def __call__(self, query: Tensor, key: Tensor, scale: float | None) -> Tensor:
        query, key, _ = self.vectors(query, key, scale)
        return torch.einsum("b h n d, b h m d -> b h n m", query, key)

    def vectors(self, query: Tensor, key: Tensor, scale: float | None) -> tuple[Tensor, Tensor, float]:
        if scale is not None:
            raise ValueError(f"scale: {scale!r} is not valid: the score Constant takes none, leave it out")
        return torch.zeros_like(query), torch.zeros_like(key), 1.0
