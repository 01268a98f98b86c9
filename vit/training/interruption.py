"""Ending a run early: a signal is noted, and obeyed after the step in progress. Imports no torch."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from vit.launcher import tells_first

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stopped(Exception):
    """The run was stopped by a signal and saved; `exit_code` is the shell's for that signal (129, 130, 143).

    `step` is None where several runs were stopped, each after a step of its own.
    """

    def __init__(self, signal_number: int, step: int | None = None, remedy: str = "continue with --resume") -> None:
        when = "" if step is None else f" after step {step}"
        super().__init__(f"stopped by {signal.Signals(signal_number).name}{when}; {remedy}")
        self.signal_number, self.step = signal_number, step
        self.exit_code = 128 + signal_number


class StopSignals:
    """While active, the first SIGTERM, SIGINT or SIGHUP is remembered and later ones are ignored, except Ctrl-C: a
    second one is answered by a line that asks for patience, and a third one leaves at once.
    """

    def __init__(self) -> None:
        self.signal_number = 0
        self._asked_again = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            for number in _STOPPING:
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
                    self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            # where a terminal closes, both the system and the shell send SIGHUP: the second one must not kill a run
            # that ends because of the first
            hung_up = number == signal.SIGHUP == self.signal_number
            signal.signal(number, signal.SIG_IGN if hung_up else handler)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        if not self.signal_number:
            self.signal_number = number
        elif number == signal.SIGINT and not self._asked_again:
            self._asked_again = True
            if os.environ.get("RANK", "0") == "0":
                _say("stopping after the step in progress, to save it; another Ctrl-C leaves at once, without saving")
        elif number == signal.SIGINT:
            line = "left at once by Ctrl-C, without saving; the last checkpoint stands, continue with --resume"
            leave_at_once(line if tells_first() else None)


@contextmanager
def stops_at_once(doing: str, remedy: str) -> Iterator[None]:
    """SIGTERM and SIGHUP end the process with a line and the shell's exit code: for work that a resume does again.

    Other processes of the run notice that this one has gone (`ranks`). Ctrl-C raises KeyboardInterrupt, as elsewhere.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        line = f"stopped by {signal.Signals(number).name} {doing}; {remedy}"
        leave_at_once(line if tells_first() else None, 128 + number)

    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves SIGHUP
                previous[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def ctrl_c_interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, and another one, while that ends the command, leaves at once in a line."""
    interrupted = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            leave_at_once("left at once by Ctrl-C")
        interrupted = True
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or (
        threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    atexit.register(_ignore_ctrl_c)  # the first to be registered is the last that is called
    try:
        yield
    except Stopped:
        interrupted = True
        raise
    finally:
        if not interrupted:  # otherwise a Ctrl-C while Python ends would print a traceback
            signal.signal(signal.SIGINT, signal.default_int_handler)
            atexit.unregister(_ignore_ctrl_c)


def _ignore_ctrl_c() -> None:
    """From here on Python's end takes moments, and it removes handlers: Ctrl-C would hide the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def leave_at_once(line: str | None, exit_code: int = 128 + signal.SIGINT) -> NoReturn:
    """Print a line and end this process and the workers that it started, without another instruction of Python's."""
    if line is not None:
        _say(line)
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(exit_code)


def _say(line: str) -> None:
    """Print in a signal's handler, where the buffer of `sys.stderr` may be in use."""
    start = "\n" if sys.stderr.isatty() else ""  # a terminal shows `^C` or a progress bar in this line
    with suppress(OSError):  # whoever would read it is gone
        os.write(2, f"{start}vit: {line}\n".encode())
