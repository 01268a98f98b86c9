"""The processes that decode images: the signals that they ignore, and what became of one that died.

A worker that is killed, or crashes in a decoder, can say nothing any more, so each notes in shared memory which image
it is about to decode.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from weakref import WeakMethod, WeakSet

import torch
from torch import Tensor

_SECONDS_UNTIL_SIGNAL = 5.0
_NONE = -1
_DEATH = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\) "
    r"(?:is killed by signal: (?P<signal>[\w ]+)|exited unexpectedly(?: with exit code (?P<code>\d+))?)"
)
"""As torch reports dead workers."""
_CAUSES = {
    "Killed": "was killed (SIGKILL; perhaps the machine was out of memory)",
    "Segmentation fault": "crashed (segmentation fault)",
    "Bus error": "crashed (bus error; perhaps /dev/shm is full)",
}

_all: WeakSet[Workers] = WeakSet()
_decoding: Tensor | None = None
"""In a worker: its entry of the shared table, int64 (1,)."""


class DeadWorker(RuntimeError):
    """A worker died; the message says how, and which image it was decoding."""


class Workers:
    """Memory that this process shares with the workers of one loader."""

    def __init__(self, number: int, name: Callable[[int], str], close: Callable[[], None]) -> None:
        """`name` gives an image's name from its index; the method `close` is called before Python exits."""
        self._closing = torch.zeros(1, dtype=torch.uint8).share_memory_()
        self._pids = torch.full((number,), _NONE).share_memory_()
        self._decoding = torch.full((number,), _NONE).share_memory_()
        self._name = name
        self._close = WeakMethod(close)
        self.begin = partial(_begin, self._closing, self._pids, self._decoding)
        """To be called in each worker with its number."""
        _all.add(self)

    def end(self) -> None:
        """Let the workers obey SIGTERM again, by which torch ends them."""
        self._closing.fill_(1)

    def close(self) -> None:
        if close := self._close():
            close()

    def image_of(self, pid: int) -> str | None:
        """The name of the image that the worker of this process number was decoding; None for none."""
        for worker in (self._pids == pid).nonzero().flatten().tolist():
            index = int(self._decoding[worker])
            return None if index == _NONE else self._name(index)
        return None


def _begin(closing: Tensor, pids: Tensor, decoding: Tensor, worker: int) -> None:
    """Ignore signals to the process group, so that workers do not die while the parent saves its state.

    SIGTERM is obeyed once the parent has set the shared `closing`.
    """
    global _decoding
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0) if closing.item() else None)
    sys.excepthook = _except_broken_connections
    pids[worker] = os.getpid()
    _decoding = decoding[worker : worker + 1]


def _except_broken_connections(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report an error as Python does, unless the parent broke off while it fetched shared memory.

    The thread that hands over memory reports to `sys.excepthook`. The parent breaks off where SIGCHLD tells it that
    another worker died, and that one is named in its own line.
    """
    if not isinstance(error, (ConnectionError, EOFError)):
        sys.__excepthook__(kind, error, trace)


def note_decoding(index: int | None) -> None:
    """In a worker, note the image that is decoded next."""
    if _decoding is not None:
        _decoding.fill_(_NONE if index is None else index)


@atexit.register
def _close_all() -> None:
    """Close streams before Python exits, which would wait forever for workers that ignore SIGTERM."""
    for workers in list(_all):
        workers.close()


def dead_worker(error: BaseException, remedy: str = "") -> str | None:
    """A line about the worker that torch's error reports as dead, with `remedy` at its end; None if it is about
    something else.
    """
    reports = []
    link: BaseException | None = error
    while link is not None:  # torch's last error names the worker alone, and the one before it its end
        if found := _DEATH.search(str(link)):
            reports.append(found)
        link = link.__cause__ or link.__context__
    if not reports:
        return None
    report = next((found for found in reports if found["signal"] or found["code"]), reports[0])
    how = f"ended with exit code {report['code']}" if report["code"] else "ended unexpectedly"
    if report["signal"]:
        how = _CAUSES.get(report["signal"].strip(), f"was ended by a signal ({report['signal'].strip()})")
    named = (workers.image_of(int(pid)) for pid in report["pids"].split(",") for workers in list(_all))
    images = [image for image in named if image is not None]
    where = f" while it decoded {', '.join(images)}" if images else ""
    return f"a worker that decodes images (process {report['pids']}) {how}{where}{'; ' if remedy else ''}{remedy}"


@contextmanager
def dead_workers_named(remedy: str = "") -> Iterator[None]:
    """Raise `DeadWorker` in place of torch's error about a dead worker, wherever in the block its signal arrives."""
    try:
        try:
            yield
        except (ConnectionError, EOFError):
            # A worker may be killed while it sends a chunk. A moment later torch receives SIGCHLD, and its handler
            # raises an error that names the worker, wherever this process is: better here than while the connection
            # error is handled.
            time.sleep(_SECONDS_UNTIL_SIGNAL)
            raise
    except DeadWorker as error:
        raise DeadWorker(f"{error}{'; ' if remedy else ''}{remedy}") from None
    except RuntimeError as error:
        line = dead_worker(error, remedy)
        if line is None:
            raise
        raise DeadWorker(line) from None
