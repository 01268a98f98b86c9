"""The specification of attention statistics, and their results by name.

Notation: see `core.py`; `s` sets of keys. `streamed` and `fused` compute them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vit.attention.backends import AttentionOptions
from vit.attention.statistics.space import Space
from vit.config import check


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionStatistics:
    """Statistics for every head and query, b h n each; all 0 for a query that may attend to nothing."""

    entropy: Tensor
    """In nats."""
    mass: dict[str, Tensor]
    """The weight on each group of keys."""
    self_mass: Tensor | None
    """The weight of a query on itself; None for cross-attention."""
    distance: Tensor | None
    """Sum of weight × distance over the keys with a position, not renormalised; 0 for a query without one, None if not
    requested.
    """
    placed_mass: Tensor | None
    """The weight on the keys with a position; 0 for a query without one."""
    own_distance: Tensor | None = None
    """The distance (n,) of each query to itself in a table of distances; None: 0."""

    def renormalised_distance(self, *, without_self: bool = False) -> Tensor:
        """`distance` with the weights of keys with a position (without the query itself) rescaled to sum to 1.

        b h n, 0 where those have no weight. `without_self` subtracts: for weights near 0, only rounding is left.
        Raises ValueError where no distance was requested, and for `without_self` of cross-attention.
        """
        if self.distance is None or self.placed_mass is None:
            raise ValueError("coordinates: None is not valid: a distance needs coordinates or distances")
        others, distance = self.placed_mass, self.distance
        if without_self:
            if self.self_mass is None:
                raise ValueError("without_self: True is not valid: with cross, the queries are not among the keys")
            others = others - self.self_mass
            if self.own_distance is not None:
                distance = distance - self.self_mass * self.own_distance
        return torch.where(others > 0, distance / others, 0.0)


class RawStatistics(NamedTuple):
    """A backend's results: entropy, self_mass and distance b h n, masses b h n s."""

    entropy: Tensor
    masses: Tensor
    self_mass: Tensor | None
    distance: Tensor | None


@dataclass(frozen=True, kw_only=True, eq=False)
class StatisticsSpec:
    """The statistics to compute: entropy, the weight on sets of keys and on the query itself, distances."""

    options: AttentionOptions
    names: tuple[str, ...]
    """Names of the user's groups."""
    sets: Tensor
    """Boolean, s m: the keys with a position where there is a `space`, then the groups."""
    space: Space | None
    query_offset: int | None
    """Index of the first query among the keys; None for cross-attention."""
    block_size: int | None

    def name(self, raw: RawStatistics) -> AttentionStatistics:
        """The results by name; distance and placed_mass of a query without a position become 0."""
        masses = list(raw.masses.unbind(-1))
        distance, placed_mass, own_distance = raw.distance, None, None
        if self.space is not None and distance is not None:
            placed = self.space.has_position[0]
            distance, placed_mass = distance * placed, masses.pop(0) * placed
            if self.space.table is not None and self.query_offset is not None:
                own_distance = self.space.table.diagonal(self.query_offset).nan_to_num(nan=0.0)
        return AttentionStatistics(
            entropy=raw.entropy,
            mass=dict(zip(self.names, masses, strict=True)),
            self_mass=raw.self_mass,
            distance=distance,
            placed_mass=placed_mass,
            own_distance=own_distance,
        )


def key_sets(space: Space | None, key_groups: Mapping[str, Tensor], key: Tensor) -> Tensor:
    """Boolean, s m: the keys with a position, then the groups. ValueError for a group of another shape or type."""
    sets = [] if space is None else [space.has_position[1]]
    num_keys = key.shape[2]
    for name, group in key_groups.items():
        fits = group.dtype == torch.bool and group.shape == (num_keys,)
        rule = f"it must be boolean, one per key of {num_keys}"
        check(fits, f"key_groups.{name}", f"{tuple(group.shape)} of {group.dtype}", rule)
        sets.append(group.to(key.device))
    return torch.stack(sets) if sets else torch.zeros(0, num_keys, dtype=torch.bool, device=key.device)
