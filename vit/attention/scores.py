"""Scores: how alike a query and a key are.

A score is called with `(query, key, scale)` and gives `b h n m`; that call is its definition, written to be
read. A score that is an inner product of vectors also says which (`vectors`), and then the fast backends can
use it. Letters: see `attend.py`. This room does not know about masks, softmax or values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize


class Score(Protocol):
    """`b h n d, b h m e -> b h n m`; `scale` None means the score's own default."""

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
        return torch.einsum("b h n d, b h m d -> b h n m", query * factor, key)  # unscaled, float16 overflows

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
        _refuse_scale("Constant", scale)
        return torch.zeros_like(query), torch.zeros_like(key), 1.0


@dataclass(frozen=True)
class TanhSum:
    """`wᵀ tanh(q + k)`, what `Additive` does once queries and keys are projected. It takes no scale."""

    weight: Tensor
    """(d,)"""

    def __call__(self, query: Tensor, key: Tensor, scale: float | None) -> Tensor:
        _refuse_scale("TanhSum", scale)
        return torch.tanh(query[:, :, :, None] + key[:, :, None]) @ self.weight  # b h n m


class Additive(nn.Module):
    """`wᵥᵀ tanh(W_q q + W_k k)` without biases (Bahdanau et al. 2015, appendix A.1.2). It takes no scale.

    Queries and keys may differ in width. A decoder that asks many times about the same keys projects them once, with
    `key`, and asks with the score `projected` of `query`'s projections.
    """

    def __init__(self, query_width: int, key_width: int, hidden_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_width, hidden_width, bias=False)
        self.key = nn.Linear(key_width, hidden_width, bias=False)
        self.weight = nn.Parameter(torch.empty(hidden_width))
        bound = hidden_width**-0.5
        nn.init.uniform_(self.weight, -bound, bound)

    @property
    def projected(self) -> TanhSum:
        return TanhSum(self.weight)

    def forward(self, query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
        _refuse_scale("Additive", scale)
        return self.projected(self.query(query), self.key(key), None)


@dataclass(frozen=True)
class GaussianKernel:
    """`-½ |(q - k) w|²`, the exponent of a Gaussian of width 1/w around every key (Nadaraya and Watson 1964). It takes
    no scale.
    """

    width: float | Tensor = 1.0
    """One w, or one a key, (m,)."""

    def __call__(self, query: Tensor, key: Tensor, scale: float | None) -> Tensor:
        _refuse_scale("GaussianKernel", scale)
        distances = (query[:, :, :, None] - key[:, :, None]).square().sum(dim=-1)  # b h n m
        return -0.5 * distances * self.width**2


def _refuse_scale(name: str, scale: float | None) -> None:
    if scale is not None:
        raise ValueError(f"scale: {scale!r} is not valid: the score {name} takes none, leave it out")
