"""What a compared library does not have. Anything else that goes wrong with it is an error and ends the measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


class Absent(Exception):
    """A library has no such model or loader; the message says what it lacks."""


def check_installed(library: str) -> None:
    """ValueError without it."""
    if find_spec(library) is None:
        raise ValueError(f"{library} is not installed; the extra 'bench' has it")


@contextmanager
def lacking() -> Iterator[None]:
    """What refuses a configuration in here says that the library lacks it."""
    try:
        yield
    except ValueError as error:
        raise Absent(str(error).removeprefix("--to: ")) from error
