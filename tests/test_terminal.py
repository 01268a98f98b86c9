"""A terminal that is closed: printing goes on, and a redirected stream is left alone."""

from __future__ import annotations

import errno
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from vit.terminal import terminal_outlived

PRINTING = """
import sys
from vit.cli import run_command

def command(words):
    print("before")
    sys.stdin.readline()
    for _ in range(3):
        print("out", flush=True)
        print("bar", end="", flush=True, file=sys.stderr)
    open(words[0], "w").write("done")
    ENDING

sys.exit(run_command(command, [sys.argv[1]]))
"""


@pytest.mark.parametrize(
    ("ending", "unbuffered", "code"),
    [
        ("pass", "", 0),
        ("pass", "1", 0),
        ("raise ValueError('wrong')", "", 2),
        ("raise OSError('full')", "1", 1),
        ("raise KeyboardInterrupt", "", 130),
    ],
)
def test_a_command_ends_as_it_would_without_its_terminal(
    tmp_path: Path, ending: str, unbuffered: str, code: int
) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PRINTING.replace("ENDING", ending), str(tmp_path / "result")],
        stdin=subprocess.PIPE,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        assert terminal.readline() == b"before\r\n"
    process.communicate(b"\n", timeout=60)
    assert (tmp_path / "result").read_text() == "done"
    assert process.returncode == code


def test_what_is_printed_to_a_closed_terminal_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with monkeypatch.context() as patch, os.fdopen(theirs, "w") as stream:
        patch.setattr(sys, "stdout", stream)
        with terminal_outlived():
            outer = sys.stdout
            assert outer is not stream
            with terminal_outlived():
                assert sys.stdout is outer  # within itself it changes nothing
            os.close(ours)
            with pytest.raises(OSError, match="Input/output") as error:
                os.write(theirs, b"x")
            assert error.value.errno == errno.EIO
            print("line")
            print("half a line", end="")
        assert sys.stdout is stream
        assert os.write(theirs, b"x") == 1  # the null device now


def test_other_streams_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with terminal_outlived():
        assert (sys.stdout, sys.stderr) == before
        print("seen")
    assert capsys.readouterr().out == "seen\n"


def test_a_terminal_that_was_closed_before_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with monkeypatch.context() as patch, os.fdopen(theirs, "w") as stream:
        patch.setattr(sys, "stdout", stream)
        os.close(ours)
        with terminal_outlived():
            print("line", flush=True)


def test_other_errors_of_writing_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with (
        monkeypatch.context() as patch,
        os.fdopen(theirs, "w") as stream,
        Path("/dev/full").open("w") as full,
        Path(os.devnull).open("w") as null,
    ):
        patch.setattr(sys, "stdout", stream)
        with terminal_outlived():
            os.dup2(full.fileno(), theirs)
            with pytest.raises(OSError, match="No space") as error:
                print("line", flush=True)
            assert error.value.errno == errno.ENOSPC
            os.dup2(null.fileno(), theirs)
    os.close(ours)
