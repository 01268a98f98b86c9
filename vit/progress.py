"""Progress of long work on standard error: a bar in a terminal, elsewhere (as a log file or CI) a line now and then."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from tqdm import tqdm

Item = TypeVar("Item")

SECONDS_BETWEEN_LINES = 30.0
"""Outside a terminal; shorter work says nothing."""
_COLUMNS = 120
"""Width of a terminal that does not know its own, as `script` makes one where nobody types; tqdm would draw nothing."""

_WITHOUT_ESTIMATE = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"


class Progress(Protocol):
    def update(self, count: int = 1) -> object:
        """Count items that are done."""

    def set_postfix_str(self, text: str) -> object:
        """Show a text behind the numbers."""


def in_terminal() -> bool:
    """Whether standard error is read as it is written, so that a bar can be redrawn in it."""
    return sys.stderr.isatty()


@contextmanager
def progress_bar(
    title: str,
    total: int | None = None,
    *,
    unit: str = "it",
    done: int = 0,
    quiet: bool = False,
    delay: float = 0.0,
    leave: bool = True,
    alike: bool = True,
) -> Iterator[Progress]:
    """Show how many of `total` items are done; in the main process only.

    `done`: before this; `delay`: seconds before a bar appears; `leave`: whether it stays when all is done; `alike`:
    whether items take equally long, so that a bar can say how long the rest will take.
    """
    if quiet or os.environ.get("RANK", "0") != "0":
        yield _Silent()
    elif in_terminal():
        options: dict[str, Any] = {"unit": unit, "initial": done, "delay": delay, "leave": leave}
        options |= {} if alike else {"bar_format": _WITHOUT_ESTIMATE}
        options |= _size()
        with tqdm(total=total, desc=title, **options) as bar:
            yield bar
    else:
        lines = _Lines(title, total, unit, done)
        yield lines
        lines.end()


def _size() -> dict[str, Any]:
    """The terminal's, as options of tqdm, which draws nothing in one that has no columns or no lines."""
    try:
        columns, lines = os.get_terminal_size(sys.stderr.fileno())
    except OSError:  # no terminal of the system's
        return {"dynamic_ncols": True}
    return {"dynamic_ncols": True} if columns and lines else {"ncols": columns or _COLUMNS, "nrows": 2}


def tracked(items: Iterable[Item], title: str, total: int, *, unit: str = "it", leave: bool = True) -> Iterator[Item]:
    """The items, with a progress bar."""
    with progress_bar(title, total, unit=unit, leave=leave) as bar:
        for item in items:
            yield item
            bar.update()


def duration(seconds: float) -> str:
    """A time for people: `8 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    rounded = round(seconds)
    for above, (large, name), (small, other) in (
        (86400, (86400, "d"), (3600, "h")),
        (3600, (3600, "h"), (60, "min")),
        (60, (60, "min"), (1, "s")),
    ):
        if rounded >= above:
            rest = rounded % large // small
            return f"{rounded // large} {name}" + (f" {rest} {other}" if rest else "")
    return f"{rounded} s"


class _Silent:
    def update(self, count: int = 1) -> None:
        pass

    def set_postfix_str(self, text: str) -> None:
        pass


class _Lines:
    def __init__(self, title: str, total: int | None, unit: str, done: int) -> None:
        self.title, self.total, self.unit = title, total, unit
        self.done = self.done_before = done
        self.text, self.num_lines = "", 0
        self.started = self.said = time.monotonic()

    def update(self, count: int = 1) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.said >= SECONDS_BETWEEN_LINES:
            self.said = now
            self._say(now - self.started)

    def set_postfix_str(self, text: str) -> None:
        self.text = text

    def end(self) -> None:
        """Say when all is done, if anything was said before."""
        if self.num_lines:
            seconds = time.monotonic() - self.started
            print(f"{self.title}: done, {self.done:,} {self.unit} in {duration(seconds)}", file=sys.stderr, flush=True)

    def _say(self, seconds: float) -> None:
        self.num_lines += 1
        speed = (self.done - self.done_before) / seconds
        parts = [f"{self.done:,}{'' if self.total is None else f' of {self.total:,}'} {self.unit}"]
        if speed > 0:
            parts.append(f"{speed:,.0f} {self.unit}/s" if speed >= 1 else f"{1 / speed:,.0f} s a {self.unit}")
        if speed > 0 and self.total is not None and self.total > self.done:
            parts.append(f"{duration((self.total - self.done) / speed)} left")
        print(f"{self.title}: {', '.join([*parts, *([self.text] if self.text else [])])}", file=sys.stderr, flush=True)
