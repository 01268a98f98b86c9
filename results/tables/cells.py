"""Numbers as cells of a table."""

from __future__ import annotations

from collections.abc import Sequence

from results.records import percent


def with_interval(accuracy: float, interval: Sequence[float]) -> str:
    low, high = interval
    return f"{percent([accuracy])} ({100 * low:.1f} to {100 * high:.1f})"


def points(difference: float, interval: Sequence[float], decimals: int = 1) -> str:
    low, high = (f"{100 * end:+.{decimals}f}" for end in interval)  # -0.00: zero is inside, if barely
    return f"{100 * difference:+z.{decimals}f} ({low} to {high})"


def p_value(value: float) -> str:
    return f"{value:.1g}" if value else "below 1e-300"
