"""One call of an attention module: what it was given, and the vectors as they meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple

import torch
from einops import rearrange
from torch import Tensor

PROJECTIONS = ("qkv", "in_proj", "q_proj", "k_proj", "v_proj", "query", "key", "value")
"""Layers inside attention modules whose outputs are kept during the pass, so that nothing is projected twice."""

Rows = Tensor | slice
Finish = Callable[[Tensor, Rows], Tensor]
"""The module's computation after attending, `b h r v -> b r c`, for some of the queries."""


class Heads(NamedTuple):
    """`b h n d, b g m d, b g m v`, just before they meet."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    bias: Tensor | None
    scale: float | None
    """None: the score's own."""
    finish: Finish
    input: Tensor
    """b n c"""
    batch_first: bool = True
    """Whether the module's output is b n c, as `finish` has it, or n b c."""
    window: tuple[int, int] | None = None
    """Rows and columns of the map that the module was given for its tokens; None: it was given tokens."""


@dataclass(frozen=True, eq=False)
class Call:
    """A module, the arguments of the call and the outputs of its projections."""

    module: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    projected: Mapping[str, Tensor]

    def argument(self, name: str) -> Any:
        """The argument that the module calls `name`, passed by place or by name; None where it was not given."""
        given = signature(self.module.forward).bind(*self.args, **self.kwargs).arguments
        return given.get(name, self.kwargs.get(name))

    def project(self, name: str, tokens: Tensor) -> Tensor:
        """A projection's output from the pass or, where the module went around its layer, made now."""
        kept = self.projected.get(name)
        return getattr(self.module, name)(tokens) if kept is None else kept


Reader = Callable[[Call], Heads | None]
"""None: the call was no self-attention."""


def mask_and_bias(given: Tensor | None, *, allowed: bool) -> tuple[Tensor | None, Tensor | None]:
    """Another library's mask as ours: boolean (True means `allowed`), or real and added to the scores, lowest: not."""
    if given is None:
        return None, None
    if given.dtype == torch.bool:
        return (given if allowed else ~given), None
    mask = given > torch.finfo(given.dtype).min / 2
    return mask, given.masked_fill(~mask, 0.0)


def split(tokens: Tensor, num_heads: int) -> Tensor:
    return rearrange(tokens, "b n (h d) -> b h n d", h=num_heads)


def merge(attended: Tensor) -> Tensor:
    return rearrange(attended, "b h r v -> b r (h v)")
