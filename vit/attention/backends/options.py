"""The options of one attention call (score, mask, bias, dropout), and `Refused`, for a backend without support for one.

Notation: see `core.py`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, cast

from torch import Tensor

from vit.attention.scores import InnerProduct, Score
from vit.linear import matmul_dtype
from vit.randomness import SampleRandom


class Refused(ValueError):
    """A backend does not support the call; the message names the reason, and a backend that does."""

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(f"backend: {backend!r} is not valid: {reason}")


class AttentionOptions(NamedTuple):
    """Everything about one attention call besides its vectors; `mask` and `bias` have four dimensions."""

    score: Score
    scale: float | None
    mask: Tensor | None
    bias: Tensor | None
    dropout: float = 0.0
    rng: SampleRandom | None = None

    def inner_product(self, backend: str) -> InnerProduct:
        """The score as an inner product of vectors; `Refused` for any other score."""
        if hasattr(self.score, "vectors"):  # isinstance checks every method and takes as long as a small product
            return cast(InnerProduct, self.score)
        raise Refused(backend, f"the score {type(self.score).__name__} is not an inner product, use 'reference'")


class Backend(Protocol):
    """`b h n d, b g m e, b g m v -> b h n v`."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor: ...


def dead_rows(mask: Tensor) -> Tensor:
    """Queries that may attend to nothing, `b h n 1`. Backends let them attend to all keys, then zero them: no NaN."""
    return ~mask.any(dim=-1, keepdim=True)


def cast_by_autocast(*vectors: Tensor) -> tuple[Tensor, ...]:
    """The vectors in autocast's type for products, as torch's own kernels cast them."""
    return tuple(vector.to(matmul_dtype(vector)) for vector in vectors)
