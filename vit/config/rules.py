"""How a setting is judged, and the one line that a user sees when it is refused."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import fields
from math import isfinite
from typing import Any

_MOST_NAMED = 40


def nearest(name: str, choices: Iterable[str]) -> str:
    """`did you mean 'x'?` for the choice that looks most like `name` in any case, or the list of the choices."""
    names = sorted(choices)
    by_lower = {choice.lower(): choice for choice in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    if close:
        return f"did you mean {by_lower[close[0]]!r}?"
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"choose from {', '.join(names[:_MOST_NAMED])}{more}"


def check(condition: bool, field_name: str, value: object, rule: str) -> None:
    """Raise the one line a user sees when a setting breaks a rule."""
    if not condition:
        raise ValueError(f"{field_name}: {value!r} is not valid: {rule}")


def check_effect(section: str, config: Any, needs: dict[str, tuple[bool, str]]) -> None:
    """A field that is not at its default must have something to act on; `needs`: field → (has it, what it needs)."""
    defaults = {item.name: item.default for item in fields(config)}
    for name, (met, need) in needs.items():
        value = getattr(config, name)
        check(met or value == defaults[name], f"{section}.{name}", value, f"it has an effect only with {need}")


def check_finite(section: str, config: Any) -> None:
    """No field, and no entry of one, is infinite or not a number."""
    for item in fields(config):
        value = getattr(config, item.name)
        numbers = [entry for entry in (value if isinstance(value, tuple) else (value,)) if isinstance(entry, float)]
        check(all(map(isfinite, numbers)), f"{section}.{item.name}", value, "it must be finite")


def check_seed(field_name: str, value: int) -> None:
    """What fits into a signed 64-bit integer."""
    check(0 <= value < 2**63, field_name, value, "it must be at least 0 and below 2**63")


def check_rate(field_name: str, value: float | None) -> None:
    """A part of a whole that is never all of it; None passes."""
    check(value is None or 0 <= value < 1, field_name, value, "it must be at least 0 and below 1")


def check_positive(field_name: str, value: float | None) -> None:
    """Above 0; None passes."""
    check(value is None or value > 0, field_name, value, "it must be above 0")
