"""Masks: which query may attend to which key; True = may attend.

Every mask is boolean and broadcasts to `b h n m`; `&` combines them. Notation: see `core.py`.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor

from vit.config.arguments import check_type


def padding(lengths: Tensor, num_keys: int) -> Tensor:
    """Allow the first `lengths` keys of every sample, (b,), or query, (b, n): `b 1 1 m` or `b 1 n m`."""
    check_type("lengths", lengths, Tensor)
    if lengths.dim() not in (1, 2) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        shape, dtype = tuple(lengths.shape), lengths.dtype
        raise ValueError(f"lengths: {shape} of {dtype} is not valid: they must be integers of shape (b,) or (b, n)")
    keys = torch.arange(num_keys, device=lengths.device)
    counts = lengths[:, None] if lengths.dim() == 1 else lengths
    return rearrange(keys < counts[..., None], "b n m -> b 1 n m")


def causal(num_queries: int, num_keys: int | None = None, *, device: torch.device | None = None) -> Tensor:
    """Allow keys up to the query's position, `n m`. Queries are the last of the keys, as with a key cache."""
    num_keys = num_queries if num_keys is None else num_keys
    _check_counts(num_queries, num_keys)
    return torch.arange(num_keys, device=device) <= _positions(num_queries, num_keys, device)[:, None]


def window(num_queries: int, radius: int, num_keys: int | None = None, *, device: torch.device | None = None) -> Tensor:
    """Allow keys at most `radius` positions from the query, `n m`. Queries are the last of the keys."""
    if not isinstance(radius, int) or radius < 0:
        raise ValueError(f"radius: {radius} is not valid: it must be a whole number of at least 0")
    num_keys = num_queries if num_keys is None else num_keys
    _check_counts(num_queries, num_keys)
    positions = _positions(num_queries, num_keys, device)
    return (torch.arange(num_keys, device=device) - positions[:, None]).abs() <= radius


def _positions(num_queries: int, num_keys: int, device: torch.device | None) -> Tensor:
    """Positions of the queries among the keys (n,): they are the last ones."""
    return torch.arange(num_queries, device=device) + (num_keys - num_queries)


def segments(query_segments: Tensor, key_segments: Tensor | None = None) -> Tensor:
    """Allow keys of the query's segment, for packed sequences: segment numbers (b, n) and (b, m) give `b 1 n m`."""
    key_segments = query_segments if key_segments is None else key_segments
    if query_segments.ndim != 2 or key_segments.ndim != 2:
        shapes = f"{tuple(query_segments.shape)} and {tuple(key_segments.shape)}"
        raise ValueError(f"segments: {shapes} are not valid: they must be (b, n) and (b, m), a number a token")
    return rearrange(query_segments[:, :, None] == key_segments[:, None, :], "b n m -> b 1 n m")


def _check_counts(num_queries: int, num_keys: int) -> None:
    for name, count in (("num_queries", num_queries), ("num_keys", num_keys)):
        if not isinstance(count, int | torch.SymInt) or count < 0:  # SymInt: torch.export's sizes
            raise ValueError(f"{name}: {count!r} is not valid: it must be a whole number of at least 0")
