"""Restricted self-attention: a token attends to those near it, at a cost that grows with the tokens, not their square.

Vaswani et al. 2017, table 1. The computing is `attend`'s, on neighbourhoods folded into the batch. Letters: see
`attend.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

from vit.attention.attend import attend


def attend_locally(query: Tensor, key: Tensor, value: Tensor, *, radius: int, backend: str = "auto") -> Tensor:
    """`attend` with the mask `window(n, radius)`: `b h n d, b g n d, b g n v -> b h n v`.

    Queries are cut into blocks as long as the radius, so what a block may attend to lies in it and its two neighbours:
    of the 3 · radius weights computed for a query, up to 2 · radius + 1 are used. ValueError for a radius below 1.
    """
    if radius < 1:
        raise ValueError(f"radius: {radius} is not valid: it must be at least 1")
    b, n = query.shape[0], query.shape[2]
    short = -n % radius  # of a last block
    blocks = rearrange(F.pad(query, (0, 0, 0, short)), "b h (c r) d -> (b c) h r d", r=radius)
    mask = repeat(_near(n, radius, query.device), "c r m -> (b c) 1 r m", b=b)
    near_keys, near_values = (_neighbourhoods(tensor, radius, short) for tensor in (key, value))
    attended = attend(blocks, near_keys, near_values, mask=mask, backend=backend)
    return rearrange(attended, "(b c) h r v -> b h (c r) v", b=b)[:, :, :n]


def _neighbourhoods(tensor: Tensor, radius: int, short: int) -> Tensor:
    """For every block its tokens, those of the block before and those of the block after: (b c) g 3r d."""
    padded = F.pad(tensor, (0, 0, radius, radius + short))
    return rearrange(padded.unfold(2, 3 * radius, radius), "b g c d m -> (b c) g m d")


def _near(n: int, radius: int, device: torch.device) -> Tensor:
    """Which keys of its neighbourhood each query may attend to: c r 3r."""
    first = torch.arange(0, n, radius, device=device)[:, None]  # c 1
    queries = first + torch.arange(radius, device=device)  # c r
    keys = first - radius + torch.arange(3 * radius, device=device)  # c m
    near = (keys[:, None, :] - queries[:, :, None]).abs() <= radius
    return near & ((keys >= 0) & (keys < n))[:, None, :]
