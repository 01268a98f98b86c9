"""Refusals for models and loaders that a compared library does not have; any other error ends the measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


class Unsupported(Exception):
    """A library has no such model or loader; the message names what is missing."""


def check_installed(library: str) -> None:
    """Raise ValueError if the library is not installed."""
    if find_spec(library) is None:
        raise ValueError(f"{library} is not installed; the extra 'bench' has it")


@contextmanager
def as_unsupported(refusal: type[ValueError] = ValueError) -> Iterator[None]:
    """Raise `Unsupported` for a `refusal` of a configuration in this block."""
    try:
        yield
    except refusal as error:
        raise Unsupported(str(error).removeprefix("--to: ")) from error
