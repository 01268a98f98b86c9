"""A figure of a model with the numbers behind it and the words under it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vit.analysis.subjects import Subject
from vit.figures.style import Figure


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """What one drawing gives."""

    figure: Figure
    numbers: dict[str, Any]
    """With their conventions."""
    words: str
    rows: Sequence[dict[str, Any]] = field(default_factory=tuple)
    """A table of the numbers, where one says it better."""


Draw = Callable[[Subject], Picture]
"""ValueError where the model or the images have not what it needs."""
