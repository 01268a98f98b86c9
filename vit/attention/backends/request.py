"""What is asked of a backend, besides the vectors: score, mask, bias, dropout. And how it says no.

A backend that cannot honour a request raises `Refused`; it never answers another question. Letters: `attend.py`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, cast

from torch import Tensor

from vit.attention.scores import InnerProduct, Score
from vit.linear import product_type
from vit.randomness import SampleRandom


class Refused(ValueError):
    """A backend was asked for what it cannot do; it says what, and who can."""

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(f"backend: {backend!r} is not valid: {reason}")


class Request(NamedTuple):
    """Everything about one attention besides its vectors; `mask` and `bias` have four dimensions."""

    score: Score
    scale: float | None
    mask: Tensor | None
    bias: Tensor | None
    dropout: float = 0.0
    rng: SampleRandom | None = None

    def inner_product(self, backend: str) -> InnerProduct:
        """The score, as vectors whose products it is. `Refused` where it is none."""
        if hasattr(self.score, "vectors"):  # isinstance would look for every method, at the price of a small product
            return cast(InnerProduct, self.score)
        raise Refused(backend, f"the score {type(self.score).__name__} is no inner product, use 'reference'")


class Backend(Protocol):
    """`b h n d, b g m e, b g m v -> b h n v`."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor: ...


def dead_rows(mask: Tensor) -> Tensor:
    """Queries that may attend to nothing, `b h n 1`. They attend to everything and are then set to zero: no NaN."""
    return ~mask.any(dim=-1, keepdim=True)


def cast_by_autocast(*vectors: Tensor) -> tuple[Tensor, ...]:
    """In the type that autocast wants for products, as torch's own kernels do it; as they are where it is off."""
    return tuple(vector.to(product_type(vector)) for vector in vectors)
