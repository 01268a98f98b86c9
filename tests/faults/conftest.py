"""Fixtures shared with the tests of training, and signals as a shell's foreground has them."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.training.conftest import no_figures

__all__ = ["no_figures"]


@pytest.fixture(autouse=True)
def signals_of_the_foreground() -> Iterator[None]:
    """A shell's background job ignores SIGINT, a nohup SIGHUP, and what a test starts would inherit it."""
    ignored = [number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
