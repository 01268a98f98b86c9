"""How far an exported file may be from its model, and the error of one that is further."""

from __future__ import annotations

TOLERANCES = {"fp32": 0.001, "bf16": 0.005, "int8": 0.005}
"""Largest differences in accuracy, as fractions, by what the file computes with."""


class Unfaithful(RuntimeError):
    """An exported file whose outputs, or accuracy, are not the model's."""
