"""Restricted self-attention: a token attends to its neighbours, at a cost linear in the number of tokens.

Vaswani et al. 2017, table 1. `attend` computes it, on neighbourhoods folded into the batch. Notation: see `core.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

from vit.attention.core import DOT_PRODUCT, attend, check_shapes
from vit.config import check
from vit.config.arguments import check_type


def attend_locally(query: Tensor, key: Tensor, value: Tensor, *, radius: int, backend: str = "auto") -> Tensor:
    """`attend` with the mask `window(n, radius)`: `b h n d, b g n d, b g n v -> b h n v`.

    Queries are cut into blocks as long as the radius, so that a block attends to itself and its two neighbours: of the
    3 · radius weights computed for a query, up to 2 · radius + 1 are used. ValueError for a
    radius below 1, and for sequences of different lengths.
    """
    check_type("radius", radius, int)
    check(radius >= 1, "radius", radius, "it must be at least 1")
    check_shapes(query, key, value, DOT_PRODUCT)
    b, n = query.shape[0], query.shape[2]
    check(key.shape[2] == n, "key", tuple(key.shape), f"it must have as many tokens as the query, {n}")
    check(n > 0, "query", tuple(query.shape), "it must have at least one token")
    radius = min(radius, n)  # no token is farther away
    padding = -n % radius  # fills the last block
    blocks = rearrange(F.pad(query, (0, 0, 0, padding)), "b h (c r) d -> (b c) h r d", r=radius)
    near_keys, near_values = (  # of every block and the blocks before and after it: (b c) g 3r d
        rearrange(
            F.pad(tensor, (0, 0, radius, radius + padding)).unfold(2, 3 * radius, radius), "b g c d m -> (b c) g m d"
        )
        for tensor in (key, value)
    )
    mask = repeat(_neighbourhood_mask(n, radius, query.device), "c r m -> (b c) 1 r m", b=b)
    attended = attend(blocks, near_keys, near_values, mask=mask, backend=backend)
    return rearrange(attended, "(b c) h r v -> b h (c r) v", c=(n + padding) // radius)[:, :, :n]


def _neighbourhood_mask(n: int, radius: int, device: torch.device) -> Tensor:
    """The keys of the three blocks that each query of the middle one may attend to: c r 3r."""
    first = torch.arange(0, n, radius, device=device)[:, None]  # c 1
    queries = first + torch.arange(radius, device=device)  # c r
    keys = first - radius + torch.arange(3 * radius, device=device)  # c m
    near = (keys[:, None, :] - queries[:, :, None]).abs() <= radius
    return near & ((keys >= 0) & (keys < n))[:, None, :]
