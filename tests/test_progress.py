"""Progress: a bar in a terminal, a line now and then in a log, nothing in processes beside the main one."""

from __future__ import annotations

import fcntl
import io
import os
import select
import struct
import sys
import termios
import time

import pytest

from vit.progress import duration, progress_bar, tracked


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that a log's lines are measured with."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_every_half_minute(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("decoding", 1000, unit="img", done=100) as bar:
        for _ in range(9):
            clock[0] += 10
            bar.update(100)
    assert capsys.readouterr().err.splitlines() == [
        "decoding: 400 of 1,000 img, 10 img/s, 1 min left",
        "decoding: 700 of 1,000 img, 10 img/s, 30 s left",
        "decoding: 1,000 of 1,000 img, 10 img/s",
        "decoding: done, 1,000 img in 1 min 30 s",
    ]


def test_short_work_and_other_processes_say_nothing(
    clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(tracked("abc", "reading", 3)) == ["a", "b", "c"]
    monkeypatch.setenv("RANK", "1")
    for _ in tracked("abc", "reading", 3):
        clock[0] += 100
    assert capsys.readouterr().err == ""


def test_slow_work_without_a_total(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("probe", unit="fit") as bar:
        bar.set_postfix_str("k-NN")
        clock[0] += 50
        bar.update()
    assert capsys.readouterr().err.startswith("probe: 1 fit, 50 s a fit, k-NN\n")


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert list(tracked("abc", "reading", 3, unit="img")) == ["a", "b", "c"]
    assert "\rreading: 100%" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()


@pytest.mark.parametrize(("lines", "columns"), [(0, 0), (0, 60), (24, 0)])
def test_a_terminal_without_a_size_gets_a_bar_too(lines: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `script` and `pty.fork` make it: 0 columns and lines; `stty cols 60` sets one of them."""
    reader, writer = os.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    assert os.get_terminal_size(writer) == (columns, lines)
    with os.fdopen(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert list(tracked("abc", "reading", 3, unit="img")) == ["a", "b", "c"]
        terminal.flush()
        said = ""
        while "3/3" not in said and select.select([reader], [], [], 10)[0]:  # a terminal gives what it has so far
            said += os.read(reader, 10_000).decode()
    os.close(reader)
    assert "3/3" in said


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "0 s"), (59.6, "1 min"), (200, "3 min 20 s"), (3600, "1 h"), (7500, "2 h 5 min"), (273600, "3 d 4 h")],
)
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_nothing_done_for_long_has_no_speed(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("reading", 10, unit="image") as bar:
        clock[0] += 31
        bar.update(0)
    assert capsys.readouterr().err.splitlines()[0] == "reading: 0 of 10 image"
