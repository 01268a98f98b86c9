"""Words for people: counts with their noun, numbers with their unit."""

from __future__ import annotations


def counted(count: float, noun: str, plural: str | None = None) -> str:
    """`1 step`, `2 steps`, `1,000 steps`; `plural` where it is not the noun and an s."""
    return f"{count:,.0f} {noun if count == 1 else plural or f'{noun}s'}"


def in_giga(number: float) -> str:
    """`0.1817 G`; of less than a hundred thousand `37.9 k`, for four digits would show none of it."""
    return f"{number / 1e9:.4f} G" if number >= 1e5 else f"{number / 1e3:.1f} k"
