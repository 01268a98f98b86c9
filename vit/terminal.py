"""A terminal that is closed while a command runs: what is printed from then on is lost, and nothing else.

Writing to such a terminal is an error (EIO), which would end a run before it is saved, or take the place of its exit
code. It comes with SIGHUP or without it: a job that the shell has disowned gets no signal. Imports no torch.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@contextmanager
def terminal_outlived() -> Iterator[None]:
    """Make standard output and error, where they are a terminal, the null device as soon as that is closed.

    Python's streams are replaced meanwhile; others, as a notebook's or pytest's, are left alone.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = meanwhile = [_outliving(stream) for stream in before]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for old, new in zip(before, meanwhile, strict=True):
            if new is not old:
                new.flush()


def _outliving(stream: TextIO) -> TextIO:
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    if not isinstance(raw, io.FileIO) or isinstance(raw, _Terminal) or not _is_terminal(raw.fileno()):
        return stream
    stream.flush()
    terminal = _Terminal(raw.fileno(), "w", closefd=False)
    unbuffered = buffer is raw  # by `python -u`
    return io.TextIOWrapper(
        terminal if unbuffered else io.BufferedWriter(terminal),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
        write_through=unbuffered,
    )


def _is_terminal(descriptor: int) -> bool:
    """True for a terminal, also one that is closed already, which `isatty` denies."""
    if os.name != "posix":
        return False
    import termios

    try:
        termios.tcgetattr(descriptor)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    return True


class _Terminal(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())  # also for the streams that were replaced, which are flushed when Python ends
        os.close(null)
        return super().write(data)
