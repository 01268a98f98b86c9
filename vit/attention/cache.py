"""Keys and values of the tokens that a decoder has read, so that a new token costs one query."""

from __future__ import annotations

import torch
from torch import Tensor

FIRST_CAPACITY = 16


class KeyValueCache:
    """Keys `b g m d` and values `b g m v` that grow along `m`.

    The buffers double when they are full, so that a token is copied about once, not at every step. Returned tensors are
    views of the buffers and stay valid until the next `reorder`.
    """

    def __init__(self) -> None:
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add new tokens' keys and values; return those of all tokens. ValueError where a gradient is recorded."""
        if torch.is_grad_enabled() and (keys.requires_grad or values.requires_grad):
            # later tokens are written into the same memory
            raise ValueError("cache: keys with a gradient are not valid: decode under torch.no_grad()")
        start, self.length = self.length, self.length + keys.shape[2]
        self._keys = _with_capacity(self._keys, keys, start, self.length)
        self._values = _with_capacity(self._values, values, start, self.length)
        self._keys[:, :, start : self.length] = keys
        self._values[:, :, start : self.length] = values
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def reorder(self, rows: Tensor) -> None:
        """Replace row `i` by row `rows[i]`; rows may be left out and repeated."""
        if self._keys is not None and self._values is not None:
            self._keys = _select_rows(self._keys, rows, self.length)
            self._values = _select_rows(self._values, rows, self.length)


def _with_capacity(buffer: Tensor | None, new: Tensor, length: int, needed: int) -> Tensor:
    """`buffer`, or a larger copy of its first `length` tokens with space for `needed`."""
    if buffer is not None and buffer.shape[2] >= needed:
        return buffer
    b, g, _, d = new.shape
    larger = new.new_empty(b, g, max(FIRST_CAPACITY, 2 * length, needed), d)
    if buffer is not None:
        larger[:, :, :length] = buffer[:, :, :length]
    return larger


def _select_rows(buffer: Tensor, rows: Tensor, length: int) -> Tensor:
    _, g, capacity, d = buffer.shape
    selected = buffer.new_empty(rows.shape[0], g, capacity, d)
    selected[:, :, :length] = buffer[rows, :, :length]
    return selected
