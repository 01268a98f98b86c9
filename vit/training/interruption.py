"""Ending a run early: a signal is noted, and obeyed after the step in progress."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Stopped(Exception):
    """The run was stopped by a signal and saved; `exit_code` is the shell's for that signal (130, 143)."""

    def __init__(self, signal_number: int, step: int, remedy: str = "continue with --resume") -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}; {remedy}")
        self.signal_number, self.step = signal_number, step
        self.exit_code = 128 + signal_number


class StopSignals:
    """While active, the first SIGTERM or SIGINT is remembered; a second one acts as it always does."""

    def __init__(self) -> None:
        self.signal_number = 0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.signal_number = number
        signal.signal(number, self._previous[number])  # type: ignore[arg-type]
