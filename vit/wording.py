"""Words for people: counts with their noun."""

from __future__ import annotations


def counted(count: float, noun: str, plural: str | None = None) -> str:
    """`1 step`, `2 steps`, `1,000 steps`; `plural` where it is not the noun and an s."""
    return f"{count:,.0f} {noun if count == 1 else plural or f'{noun}s'}"
