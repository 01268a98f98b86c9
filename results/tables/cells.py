"""A table as Markdown, and numbers as its cells have them."""

from __future__ import annotations

from collections.abc import Sequence

from results.records import percent


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def with_interval(accuracy: float, interval: Sequence[float]) -> str:
    low, high = interval
    return f"{percent([accuracy])} ({100 * low:.1f} to {100 * high:.1f})"


def points(difference: float, interval: Sequence[float], decimals: int = 1) -> str:
    low, high = (f"{100 * end:+.{decimals}f}" for end in interval)  # -0.00: zero is inside, if barely
    return f"{100 * difference:+z.{decimals}f} ({low} to {high})"


def p_value(value: float) -> str:
    return f"{value:.1g}" if value else "below 1e-300"
