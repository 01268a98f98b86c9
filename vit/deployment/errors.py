"""The error of an export that was made, and is not good enough."""

from __future__ import annotations


class Unfaithful(RuntimeError):
    """An exported file whose accuracy is not the model's."""
