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
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if before[number] == signal.SIG_IGN:
            signal.signal(number, handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
