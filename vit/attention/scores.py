"""Scores: the similarity of a query and a key.

A score is called with `(query, key, scale)` and returns `b h n m`; that call is its definition, written for reading. A
score that is an inner product also returns its two vectors (`vectors`), which is what the fast backends use. Masks,
softmax and values are applied elsewhere. Notation: see `core.py`.
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
    """A score that equals `factor * queryᵀkey` of the vectors and the factor that `vectors` returns."""

    def vectors(self, query: Tensor, key: Tensor, scale: float | None) -> tuple[Tensor, Tensor, float]: ...


@dataclass(frozen=True)
class ScaledDotProduct:
    """`scale * qᵀk`; the default, `1/√d`, gives unit-variance vectors unit-variance scores (Vaswani et al. 2017)."""

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
        least = max(1e-12, torch.finfo(query.dtype).tiny)  # in float16 1e-12 is 0, and a vector of zeros NaN
        query, key = (normalize(vectors, dim=-1, eps=least) for vectors in (query, key))
        return query, key, 1.0 if scale is None else scale


@dataclass(frozen=True)
class Constant:
    """The same score for every key: attention becomes the mean of the values that the mask allows. Takes no scale."""

    def __call__(self, query: Tensor, key: Tensor, scale: float | None) -> Tensor:
        query, key, _ = self.vectors(query, key, scale)
        return torch.einsum("b h n d, b h m d -> b h n m", query, key)

    def vectors(self, query: Tensor, key: Tensor, scale: float | None) -> tuple[Tensor, Tensor, float]:
        _refuse_scale("Constant", scale)
        return torch.zeros_like(query), torch.zeros_like(key), 1.0


@dataclass(frozen=True)
class TanhSum:
    """`wᵀ tanh(q + k)`: `Additive` of queries and keys that are projected already. Takes no scale."""

    weight: Tensor
    """(d,)"""

    def __call__(self, query: Tensor, key: Tensor, scale: float | None) -> Tensor:
        _refuse_scale("TanhSum", scale)
        return torch.tanh(query[:, :, :, None] + key[:, :, None]) @ self.weight  # b h n m


class Additive(nn.Module):
    """`wᵥᵀ tanh(W_q q + W_k k)` without biases (Bahdanau et al. 2015, appendix A.1.2). Takes no scale.

    Queries and keys may differ in width. A decoder that attends to the same keys many times projects them once with
    `key`, its queries with `query`, and scores them with `projected`.
    """

    def __init__(self, query_width: int, key_width: int, hidden_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_width, hidden_width, bias=False)
        self.key = nn.Linear(key_width, hidden_width, bias=False)
        self.weight = nn.Parameter(torch.empty(hidden_width))
        self.initialize()

    def initialize(self) -> None:
        """Draw `weight` as a linear layer's, from torch's generator."""
        bound = self.weight.shape[0] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    @property
    def projected(self) -> TanhSum:
        return TanhSum(self.weight)

    def forward(self, query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
        _refuse_scale("Additive", scale)
        return self.projected(self.query(query), self.key(key), None)


@dataclass(frozen=True)
class GaussianKernel:
    """`-½ |(q - k) w|²`, the exponent of a Gaussian of standard deviation 1/w around every key (Nadaraya and Watson
    1964). Takes no scale.
    """

    width: float | Tensor = 1.0
    """One w, or one per key, (m,)."""

    def __call__(self, query: Tensor, key: Tensor, scale: float | None) -> Tensor:
        _refuse_scale("GaussianKernel", scale)
        distances = (query[:, :, :, None] - key[:, :, None]).square().sum(dim=-1)  # b h n m
        return -0.5 * distances * self.width**2


def _refuse_scale(name: str, scale: float | None) -> None:
    if scale is not None:
        raise ValueError(f"scale: {scale!r} is not valid: the score {name} takes none, leave it out")
