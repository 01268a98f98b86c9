"""What a score's growth does to learning: attention trained to find each query's key, with vectors of growing width.

Every score is given the same vectors, projections, steps and learning rate. The error is taken from the averaged
values, so that it reaches the projections only through the softmax; where that is saturated, at random keys, nothing is
learned. Additive scores stay bounded (Bahdanau et al. 2015) and scaled products keep their variance; unscaled products
do not (Vaswani et al. 2017, section 3.2.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.attention.core import attend, attention_weights
from vit.attention.scores import ScaledDotProduct, Score, TanhSum

Kind = Literal["additive", "dot-product", "scaled dot-product"]
KINDS: tuple[Kind, ...] = ("additive", "dot-product", "scaled dot-product")

_NUM_PAIRS = 16
_VALUE_WIDTH = 8
CHANCE = 1 / _NUM_PAIRS
"""The weight on the right key where nothing is known."""


class Pairing(nn.Module):
    """Random queries, keys and values, one of each a pair, and projections that must learn who belongs together."""

    def __init__(self, kind: Kind, width: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.kind = kind
        self.queries, self.keys = draw(1, 1, _NUM_PAIRS, width), draw(1, 1, _NUM_PAIRS, width)
        self.values = draw(1, 1, _NUM_PAIRS, _VALUE_WIDTH)
        self.project_query = nn.Parameter(draw(width, width) * width**-0.5)
        self.project_key = nn.Parameter(draw(width, width) * width**-0.5)
        self.weight = nn.Parameter(draw(width) * width**-0.5) if kind == "additive" else None

    def projected(self) -> tuple[Tensor, Tensor]:
        """Queries and keys of unit variance before training, `1 1 n d` each."""
        return self.queries @ self.project_query, self.keys @ self.project_key

    def score(self) -> tuple[Score, float | None]:
        if self.weight is not None:
            return TanhSum(self.weight), None
        return ScaledDotProduct(), 1.0 if self.kind == "dot-product" else None

    def error(self) -> Tensor:
        score, scale = self.score()
        return F.mse_loss(attend(*self.projected(), self.values, score=score, scale=scale), self.values)

    @torch.no_grad()
    def weight_on_own_key(self) -> float:
        """The mean over queries: 1 is perfect, `CHANCE` knows nothing."""
        score, scale = self.score()
        return attention_weights(*self.projected(), score=score, scale=scale)[0, 0].diagonal().mean().item()


def learn_pairing(kind: Kind, width: int, *, num_steps: int = 60, learning_rate: float = 0.01, seed: int = 0) -> float:
    """Train a `Pairing` with Adam, on all its pairs at once; the weight on a query's own key afterwards."""
    pairing = Pairing(kind, width, seed)
    optimizer = torch.optim.Adam(pairing.parameters(), lr=learning_rate)
    for _ in range(num_steps):
        optimizer.zero_grad()
        pairing.error().backward()
        optimizer.step()
    return pairing.weight_on_own_key()


def compare_scores(
    widths: Sequence[int], *, num_steps: int = 60, learning_rate: float = 0.01, num_seeds: int = 3
) -> dict[str, list[float]]:
    """`learn_pairing` for every kind of score at every width, the mean over seeds."""

    def learned(kind: Kind, width: int) -> float:
        return fmean(
            learn_pairing(kind, width, num_steps=num_steps, learning_rate=learning_rate, seed=seed)
            for seed in range(num_seeds)
        )

    return {kind: [learned(kind, width) for width in widths] for kind in KINDS}
