"""Checks of settings, whose errors are one line for the user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import fields
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

_MAX_CHOICES = 40
_LONGEST_SHOWN = 200
_MOST_COMPARED = 1_000
"""Names in a folder that are compared with one that is not there."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """Suggest the choice most similar to `name`, ignoring case; if none is similar, list the choices."""
    names = sorted(choices)
    by_lower = {choice.lower(): choice for choice in names}
    close = difflib.get_close_matches(name[:_LONGEST_SHOWN].lower(), by_lower, n=1)  # its time grows with the square
    if close:
        return f"did you mean {by_lower[close[0]]!r}?"
    more = f" and {len(names) - _MAX_CHOICES} more" if len(names) > _MAX_CHOICES else ""
    return f"choose from {', '.join(names[:_MAX_CHOICES])}{more}"


def nearest_path(path: Path) -> str:
    """Suggest the file or folder in the same place with the most similar name; nothing if none is similar."""
    try:
        names = [entry.name for entry in islice(path.parent.iterdir(), _MOST_COMPARED) if entry.name != path.name]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name[:_LONGEST_SHOWN], names, n=1, cutoff=0.75)
    return f"did you mean {str(path.parent / close[0])!r}?" if close else ""


def shown(value: object) -> str:
    """A value as it stands in a message: as Python writes it, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}… ({len(text):,} characters)"


def check(condition: bool, field_name: str, value: object, rule: str) -> None:
    """Raise ValueError, one line for the user, unless the condition holds."""
    if not condition:
        raise ValueError(f"{field_name}: {shown(value)} is not valid: {rule}")


def check_no_pipe(field_name: str, path: Path) -> None:
    """Refuse a path that names something else than a file, a folder or nothing: reading a pipe or a device may wait for
    ever.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        kind = "pipe" if path.is_fifo() else "socket" if path.is_socket() else "device"
        raise ValueError(f"{field_name}: {str(path)!r} is not valid: it is a {kind}, not a file")


def check_effect(section: str, config: Any, needs: dict[str, tuple[bool, str]]) -> None:
    """Refuse fields without effect that are not at their default; `needs`: field → (has an effect, what that needs)."""
    defaults = {item.name: item.default for item in fields(config)}
    for name, (met, need) in needs.items():
        value = getattr(config, name)
        check(met or value == defaults[name], f"{section}.{name}", value, f"it has an effect only with {need}")


def check_finite(section: str, config: Any) -> None:
    """Refuse infinite and NaN fields, and tuples that contain one."""
    for item in fields(config):
        value = getattr(config, item.name)
        numbers = [entry for entry in (value if isinstance(value, tuple) else (value,)) if isinstance(entry, float)]
        check(all(map(isfinite, numbers)), f"{section}.{item.name}", value, "it must be finite")


def check_seed(field_name: str, value: int) -> None:
    """Refuse seeds that do not fit into a signed 64-bit integer."""
    check(0 <= value < 2**63, field_name, value, "it must be at least 0 and below 2**63")


def check_rate(field_name: str, value: float | None) -> None:
    """Refuse values outside [0, 1); None passes."""
    check(value is None or 0 <= value < 1, field_name, value, "it must be at least 0 and below 1")


def check_positive(field_name: str, value: float | None) -> None:
    """Refuse values of 0 and below; None passes."""
    check(value is None or value > 0, field_name, value, "it must be above 0")
