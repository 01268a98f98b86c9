"""Keys and values of the tokens that a decoder has read, so that a new token costs one query.

It knows rows and tokens; what becomes of hypotheses is the search's business.
"""

from __future__ import annotations

import torch
from torch import Tensor

FIRST_CAPACITY = 16


class KeyValueCache:
    """Keys `b g m d` and values `b g m v` that grow along `m`.

    Room is doubled when it is full, so that all tokens together are copied about once, not once a step. Tensors given
    out are views of that room and stay right until the next `reorder`.
    """

    def __init__(self) -> None:
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Take the newest tokens' keys and values; give those of all tokens. ValueError where a gradient is recorded:
        later tokens are written into the same memory.
        """
        if torch.is_grad_enabled() and (keys.requires_grad or values.requires_grad):
            raise ValueError("cache: keys with a gradient are not valid: decode under torch.no_grad()")
        start, self.length = self.length, self.length + keys.shape[2]
        self._keys = _with_room(self._keys, keys, start, self.length)
        self._values = _with_room(self._values, values, start, self.length)
        self._keys[:, :, start : self.length] = keys
        self._values[:, :, start : self.length] = values
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def reorder(self, rows: Tensor) -> None:
        """Row `i` becomes what row `rows[i]` was; rows may be left out and repeated."""
        if self._keys is not None and self._values is not None:
            self._keys = _rows_of(self._keys, rows, self.length)
            self._values = _rows_of(self._values, rows, self.length)


def _with_room(room: Tensor | None, newest: Tensor, filled: int, needed: int) -> Tensor:
    """`room`, or a larger one with the same tokens, for `needed` tokens."""
    if room is not None and room.shape[2] >= needed:
        return room
    b, g, _, d = newest.shape
    larger = newest.new_empty(b, g, max(FIRST_CAPACITY, 2 * filled, needed), d)
    if room is not None:
        larger[:, :, :filled] = room[:, :, :filled]
    return larger


def _rows_of(room: Tensor, rows: Tensor, filled: int) -> Tensor:
    _, g, capacity, d = room.shape
    chosen = room.new_empty(rows.shape[0], g, capacity, d)
    chosen[:, :, :filled] = room[rows, :, :filled]
    return chosen
