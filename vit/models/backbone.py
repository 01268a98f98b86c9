"""Selection of a backbone's intermediate features, with timm's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from vit.config import check

OutputFormat = Literal["NCHW", "NLC"]
Intermediates = list[Tensor] | list[tuple[Tensor, Tensor]]
"""Features of the selected blocks, in order; or each with its prefix tokens."""


def select_blocks(count: int, indices: int | Sequence[int] | None) -> set[int]:
    """Indices of blocks: all (None), the last `indices`, or those in a sequence, negative ones from the end.

    ValueError for an index out of range.
    """
    if indices is None:
        return set(range(count))
    if isinstance(indices, int):
        check(1 <= indices <= count, "indices", indices, f"the last 1 to {count} blocks can be taken")
        return set(range(count - indices, count))
    for index in indices:
        check(-count <= index < count, "indices", index, f"there are {count} blocks, {-count} to {count - 1}")
    check(len(indices) > 0, "indices", list(indices), "it must name at least one block")
    return {index % count for index in indices}


def check_output_format(output_fmt: str, allowed: tuple[OutputFormat, ...]) -> None:
    check(output_fmt in allowed, "output_fmt", output_fmt, " or ".join(map(repr, allowed)))
