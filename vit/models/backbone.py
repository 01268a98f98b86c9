"""The interface of both kinds of models as backbones: a choice of intermediate features, with timm's arguments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from vit.config import check
from vit.models.model import Model

OutputFormat = Literal["NCHW", "NLC"]
Intermediates = list[Tensor] | list[tuple[Tensor, Tensor]]
"""Features of the selected blocks, in order; or each with its prefix tokens."""


class Backbone(Model):
    """A model whose features can be read after any of its layers."""

    @abstractmethod
    def forward_intermediates(
        self,
        images: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        output_fmt: OutputFormat = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """The last features and those of the selected layers."""

    def get_intermediate_layers(
        self,
        images: Tensor,
        n: int | Sequence[int] = 1,
        reshape: bool = False,
        return_prefix_tokens: bool = False,
        norm: bool = False,
    ) -> Intermediates:
        """`forward_intermediates` as in DINO: the last `n` layers or those in `n`, `b n c`; `reshape`: `b c gh gw`."""
        output_fmt: OutputFormat = "NCHW" if reshape else "NLC"
        features: Intermediates = self.forward_intermediates(
            images, n, return_prefix_tokens, norm, output_fmt, intermediates_only=True
        )
        return features


def select_blocks(count: int, indices: int | Sequence[int] | None) -> set[int]:
    """Indices of blocks: all (None), the last `indices`, or those in a sequence, negative ones from the end.

    ValueError for an index out of range.
    """
    if indices is None:
        return set(range(count))
    numbers = [indices] if isinstance(indices, int) else indices
    rule = "it must be a number of last blocks, or a list of blocks"
    fits = isinstance(numbers, Sequence) and all(isinstance(each, int) for each in numbers)
    check(fits, "indices", indices, rule)
    if isinstance(indices, int):
        check(1 <= indices <= count, "indices", indices, f"the last 1 to {count} blocks can be taken")
        return set(range(count - indices, count))
    for index in indices:
        check(-count <= index < count, "indices", index, f"there are {count} blocks, {-count} to {count - 1}")
    check(len(indices) > 0, "indices", list(indices), "it must name at least one block")
    return {index % count for index in indices}


def check_output_format(output_fmt: str, allowed: tuple[OutputFormat, ...]) -> None:
    check(output_fmt in allowed, "output_fmt", output_fmt, " or ".join(map(repr, allowed)))
