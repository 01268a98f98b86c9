"""Masks: which query may attend to which key. True = may attend, said once, here.

Every mask is boolean and broadcasts to `b h n m`; `&` combines them. Letters: see `attend.py`.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor


def padding(lengths: Tensor, num_keys: int) -> Tensor:
    """The first `lengths` keys of every sample, (b,), or of every query, (b, n). Gives `b 1 1 m` or `b 1 n
    m`.
    """
    if lengths.dim() not in (1, 2) or lengths.is_floating_point():
        shape, dtype = tuple(lengths.shape), lengths.dtype
        raise ValueError(f"lengths: {shape} of {dtype} is not valid: they must be integers of shape (b,) or (b, n)")
    keys = torch.arange(num_keys, device=lengths.device)
    counts = lengths[:, None] if lengths.dim() == 1 else lengths
    return rearrange(keys < counts[..., None], "b n m -> b 1 n m")


def causal(num_queries: int, num_keys: int | None = None, *, device: torch.device | None = None) -> Tensor:
    """Keys up to the query's own place, `n m`. Queries stand at the end of the keys, as with a key cache."""
    num_keys = num_queries if num_keys is None else num_keys
    places = torch.arange(num_queries, device=device) + (num_keys - num_queries)
    return torch.arange(num_keys, device=device) <= places[:, None]


def window(num_queries: int, radius: int, num_keys: int | None = None, *, device: torch.device | None = None) -> Tensor:
    """Keys at most `radius` places from the query's own, `n m`. Queries stand at the end of the keys."""
    if not isinstance(radius, int) or radius < 0:
        raise ValueError(f"radius: {radius} is not valid: it must be a whole number of at least 0")
    num_keys = num_queries if num_keys is None else num_keys
    places = torch.arange(num_queries, device=device) + (num_keys - num_queries)
    return (torch.arange(num_keys, device=device) - places[:, None]).abs() <= radius


def segments(query_segments: Tensor, key_segments: Tensor | None = None) -> Tensor:
    """Keys of the query's own segment, for packed sequences: (b, n) and (b, m) numbers give `b 1 n m`."""
    key_segments = query_segments if key_segments is None else key_segments
    if query_segments.ndim != 2 or key_segments.ndim != 2:
        shapes = f"{tuple(query_segments.shape)} and {tuple(key_segments.shape)}"
        raise ValueError(f"segments: {shapes} are not valid: they must be (b, n) and (b, m), a number a token")
    return rearrange(query_segments[:, :, None] == key_segments[:, None, :], "b n m -> b 1 n m")
