"""How a setting is judged, and the one line that a user sees when it is refused."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import fields
from typing import Any


def nearest(name: str, choices: Iterable[str]) -> str:
    """`, did you mean 'x'?` for the choice that looks most like `name`, or the list of all of them."""
    names = sorted(choices)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(names)}"


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


def check_rate(field_name: str, value: float | None) -> None:
    """A part of a whole that is never all of it; None passes."""
    check(value is None or 0 <= value < 1, field_name, value, "it must be at least 0 and below 1")


def check_positive(field_name: str, value: float | None) -> None:
    """Above 0; None passes."""
    check(value is None or value > 0, field_name, value, "it must be above 0")
