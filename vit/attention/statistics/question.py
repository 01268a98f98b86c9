"""What is asked about the attention weights, and the answers by name.

Letters: see `attend.py`; `s` chosen sets of keys. This room does not compute weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vit.attention.backends import Request
from vit.attention.statistics.space import Space
from vit.config import check


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionStatistics:
    """For every head and query, b h n. A query that may attend to nothing has zeros everywhere."""

    entropy: Tensor
    """In nats."""
    mass: dict[str, Tensor]
    """The weight on every chosen group of keys."""
    self_mass: Tensor | None
    """The weight of a query on itself; None for cross-attention."""
    distance: Tensor | None
    """Sum of weight × distance over the keys with a place, not renormalised; 0 for a query without a place, None if
    not asked for.
    """
    placed_mass: Tensor | None
    """The weight on the keys with a place; 0 for a query without a place."""

    def renormalised_distance(self, *, without_self: bool = False) -> Tensor:
        """`distance` as if there were no keys but those with a place (and not the query itself).

        b h n, 0 where those have no weight. `without_self` takes a difference: of weights near 0, rounding is left.
        Raises ValueError where no distance was asked for, and for `without_self` of cross-attention.
        """
        if self.distance is None or self.placed_mass is None:
            raise ValueError("coordinates: None is not valid: a distance needs coordinates or distances")
        others = self.placed_mass
        if without_self:
            if self.self_mass is None:
                raise ValueError("without_self: True is not valid: with cross, the queries are not among the keys")
            others = others - self.self_mass
        return torch.where(others > 0, self.distance / others, 0.0)


class Answers(NamedTuple):
    """What a backend gives: entropy, own and distance b h n, masses b h n s."""

    entropy: Tensor
    masses: Tensor
    own: Tensor | None
    distance: Tensor | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """What a backend is asked: entropy, the weight on sets of keys and on oneself, distances."""

    request: Request
    names: tuple[str, ...]
    """Of the groups that the user chose."""
    sets: Tensor
    """Boolean, s m: the keys with a place where there is a `space`, then the groups."""
    space: Space | None
    first_own: int | None
    """The key that the first query is; None for cross-attention."""
    block_size: int | None

    def name(self, answers: Answers) -> AttentionStatistics:
        """The answers by name; a query without a place has no distance to anything."""
        masses = list(answers.masses.unbind(-1))
        distance, placed_mass = answers.distance, None
        if self.space is not None and distance is not None:
            has_place = self.space.placed[0]
            distance, placed_mass = distance * has_place, masses.pop(0) * has_place
        return AttentionStatistics(
            entropy=answers.entropy,
            mass=dict(zip(self.names, masses, strict=True)),
            self_mass=answers.own,
            distance=distance,
            placed_mass=placed_mass,
        )


def sets_of_keys(space: Space | None, key_groups: Mapping[str, Tensor], key: Tensor) -> Tensor:
    """Boolean, s m: the keys with a place, then the groups. ValueError for a group that does not fit."""
    sets = [] if space is None else [space.placed[1]]
    num_keys = key.shape[2]
    for name, group in key_groups.items():
        fits = group.dtype == torch.bool and group.shape == (num_keys,)
        rule = f"it must be boolean, one for each of {num_keys} keys"
        check(fits, f"key_groups.{name}", f"{tuple(group.shape)} of {group.dtype}", rule)
        sets.append(group.to(key.device))
    return torch.stack(sets) if sets else torch.zeros(0, num_keys, dtype=torch.bool, device=key.device)
