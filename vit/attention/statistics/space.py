"""Distances between queries and keys, a block of queries at a time.

A token without a position, such as a class token, is NaN and has no distance to anything. Notation: see `core.py`; `k`
coordinates of a position.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vit.config import check


@dataclass(frozen=True, kw_only=True)
class Space:
    """The coordinates of tokens, or a table of the distances between them."""

    coordinates: tuple[Tensor, Tensor] | None
    """Those of the queries (n, k) and of the keys (m, k)."""
    table: Tensor | None
    """(n, m)"""

    @property
    def has_position(self) -> tuple[Tensor, Tensor]:
        """True for queries (n,) and for keys (m,) that have a position."""
        if self.table is not None:
            missing = self.table.isnan()
            return ~missing.all(dim=1), ~missing.all(dim=0)
        assert self.coordinates is not None
        of_queries, of_keys = self.coordinates
        return ~of_queries.isnan().any(dim=1), ~of_keys.isnan().any(dim=1)

    @property
    def num_buffers(self) -> int:
        """Number of tiles that `distances` writes to."""
        return 2 if self.table is None else 1

    def distances(self, rows: slice, buffers: Tensor) -> Tensor:
        """The distances from the queries `rows`, n m; 0 where there is none.

        They are written to `buffers`, contiguous and `num_buffers` n m in their type: tiles as large would be allocated
        anew for every call, which takes longer than the arithmetic.
        """
        if self.table is not None:
            return buffers[0].copy_(self.table[rows]).nan_to_num_(nan=0.0)
        assert self.coordinates is not None
        squares, difference = buffers
        query_coordinates, key_coordinates = (coordinates.to(buffers.dtype) for coordinates in self.coordinates)
        first, *more = zip(query_coordinates[rows].unbind(1), key_coordinates.unbind(1), strict=True)
        torch.sub(first[0][:, None], first[1], out=squares).square_()
        for of_queries, of_keys in more:
            torch.sub(of_queries[:, None], of_keys, out=difference)
            squares.addcmul_(difference, difference)
        return squares.sqrt_().nan_to_num_(nan=0.0)


def build_space(
    num_queries: int,
    num_keys: int,
    *,
    coordinates: Tensor | None,
    query_coordinates: Tensor | None,
    distances: Tensor | None,
    cross: bool,
    device: torch.device,
) -> Space | None:
    """The space of a user's arguments. ValueError for those that contradict each other or have no effect."""
    if query_coordinates is not None and (coordinates is None or not cross):
        rule = "it has an effect only with coordinates of the keys and with cross"
        raise ValueError(f"query_coordinates: {tuple(query_coordinates.shape)} is not valid: {rule}")
    if distances is not None:
        check(coordinates is None, "distances", tuple(distances.shape), "give coordinates or distances, not both")
        _check_table(distances, (num_queries, num_keys))
        return Space(coordinates=None, table=distances.to(device))
    if coordinates is None:
        return None
    _check_coordinates("coordinates", coordinates, num_keys)
    of_queries = coordinates[num_keys - num_queries :]
    if cross:
        if query_coordinates is None:
            raise ValueError("query_coordinates: None is not valid: with cross, coordinates need those of queries too")
        _check_coordinates("query_coordinates", query_coordinates, num_queries)
        rule = f"it must have as many columns as coordinates, {coordinates.shape[1]}"
        shape = tuple(query_coordinates.shape)
        check(shape[1] == coordinates.shape[1], "query_coordinates", shape, rule)
        of_queries = query_coordinates
    return Space(coordinates=(of_queries.to(device), coordinates.to(device)), table=None)


def _check_coordinates(name: str, coordinates: Tensor, count: int) -> None:
    shape = tuple(coordinates.shape)
    fits = coordinates.dim() == 2 and shape[0] == count and shape[1] > 0
    check(fits, name, shape, f"it must be (tokens, coordinates), with {count} tokens")
    check(not coordinates.isinf().any(), name, float("inf"), "it must be finite, or NaN for a token without a position")


def _check_table(table: Tensor, shape: tuple[int, int]) -> None:
    check(table.shape == shape, "distances", tuple(table.shape), f"it must be (queries, keys), {shape}")
    check(not table.isinf().any(), "distances", float("inf"), "it must be finite, or NaN where there is none")
    missing = table.isnan()
    consistent = torch.equal(missing, missing.all(dim=1)[:, None] | missing.all(dim=0))
    check(consistent, "distances", float("nan"), "a token without a position is a full row or column of NaN")
