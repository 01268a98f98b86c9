"""How far queries and keys are from one another, a block of queries at a time.

A token without a place (one that was added to the sequence) is NaN, and has no distance to anything. Letters: see
`attend.py`; `k` coordinates of a place. This room does not know of weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vit.config import check


@dataclass(frozen=True, kw_only=True)
class Space:
    """Where tokens stand, or how far they are from one another."""

    places: tuple[Tensor, Tensor] | None
    """Of the queries (n, k) and of the keys (m, k)."""
    table: Tensor | None
    """(n, m)"""

    @property
    def placed(self) -> tuple[Tensor, Tensor]:
        """Which queries (n,) and which keys (m,) have a place."""
        if self.table is not None:
            missing = self.table.isnan()
            return ~missing.all(dim=1), ~missing.all(dim=0)
        assert self.places is not None
        query_places, key_places = self.places
        return ~query_places.isnan().any(dim=1), ~key_places.isnan().any(dim=1)

    def block(self, rows: slice, dtype: torch.dtype) -> Tensor:
        """The distances of some queries, n m; 0 where there is none."""
        if self.table is not None:
            return self.table[rows].to(dtype).nan_to_num(nan=0.0)
        assert self.places is not None
        query_places, key_places = (places.to(dtype) for places in self.places)
        first, *more = zip(query_places[rows].unbind(1), key_places.unbind(1), strict=True)
        squares = (first[0][:, None] - first[1]).square_()  # n m
        for of_queries, of_keys in more:
            difference = of_queries[:, None] - of_keys  # n m
            squares.addcmul_(difference, difference)
        return squares.sqrt_().nan_to_num_(nan=0.0)


def space_between(
    num_queries: int,
    num_keys: int,
    *,
    coordinates: Tensor | None,
    query_coordinates: Tensor | None,
    distances: Tensor | None,
    cross: bool,
    device: torch.device,
) -> Space | None:
    """The space that a user describes. ValueError for what contradicts itself or has no effect."""
    if query_coordinates is not None and (coordinates is None or not cross):
        rule = "it has an effect only with coordinates of the keys and with cross"
        raise ValueError(f"query_coordinates: {tuple(query_coordinates.shape)} is not valid: {rule}")
    if distances is not None:
        check(coordinates is None, "distances", tuple(distances.shape), "give coordinates or distances, not both")
        _check_table(distances, (num_queries, num_keys))
        return Space(places=None, table=distances.to(device))
    if coordinates is None:
        return None
    _check_places("coordinates", coordinates, num_keys)
    of_queries = coordinates[num_keys - num_queries :]
    if cross:
        if query_coordinates is None:
            raise ValueError("query_coordinates: None is not valid: with cross, coordinates need those of queries too")
        _check_places("query_coordinates", query_coordinates, num_queries)
        rule = f"it must have as many columns as coordinates, {coordinates.shape[1]}"
        shape = tuple(query_coordinates.shape)
        check(shape[1] == coordinates.shape[1], "query_coordinates", shape, rule)
        of_queries = query_coordinates
    return Space(places=(of_queries.to(device), coordinates.to(device)), table=None)


def _check_places(name: str, places: Tensor, count: int) -> None:
    shape = tuple(places.shape)
    fits = places.dim() == 2 and shape[0] == count and shape[1] > 0
    check(fits, name, shape, f"it must be (tokens, coordinates), with {count} tokens")
    check(not places.isinf().any(), name, float("inf"), "a place is finite; NaN says that a token has none")


def _check_table(table: Tensor, shape: tuple[int, int]) -> None:
    check(table.shape == shape, "distances", tuple(table.shape), f"it must be (queries, keys), {shape}")
    check(not table.isinf().any(), "distances", float("inf"), "a distance is finite; NaN says that there is none")
    missing = table.isnan()
    whole = torch.equal(missing, missing.all(dim=1)[:, None] | missing.all(dim=0))
    check(whole, "distances", float("nan"), "a token without a place is a whole row or column of NaN")
