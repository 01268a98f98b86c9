"""The ratio of hidden features to the width, as timm's models are built with it."""

from __future__ import annotations


def exact_ratio(hidden: int, width: int) -> float:
    """A ratio of which timm, which rounds down, makes exactly these hidden features."""
    return (hidden + 0.5) / width
