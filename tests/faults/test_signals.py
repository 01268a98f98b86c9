"""Signals while a run is trained: saved and in one line, however often Ctrl-C is pressed, and without a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.test_loop import at_step
from tests.training.tiny import assert_same_bits, last, tiny
from vit.cli import main
from vit.settings import dump_run_config
from vit.tasks.classification.config import ClassificationRun
from vit.training import interruption
from vit.training.loop import train

SLOW = tiny(train={"epochs": 400, "save_every_steps": 10_000, "evaluate_every_epochs": 400})


class Left(BaseException):
    """In place of the end of this process."""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(dump_run_config(tiny(), {}))
    return path


def interrupt(times: int) -> Callable[[], None]:
    def act() -> None:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    return act


def test_a_second_ctrl_c_is_asked_for_patience_and_the_run_saved(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    at_step(monkeypatch, 2, interrupt(2))
    assert main(["train", "--config", str(recipe), "--output_dir", str(tmp_path / "run")]) == 130
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("vit:")]
    assert len(lines) == 2
    assert "another Ctrl-C leaves at once, without saving" in lines[0]
    assert "stopped by SIGINT after step 3; continue with --resume" in lines[1]
    assert last(tmp_path / "run").state["progress"]["step"] == 3


def test_the_third_leaves_at_once(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def leave(code: int) -> None:
        assert code == 130
        raise Left

    monkeypatch.setattr(os, "_exit", leave)
    at_step(monkeypatch, 2, interrupt(5))
    with pytest.raises(Left):
        main(["train", "--config", str(recipe), "--output_dir", str(tmp_path / "run")])
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("vit:")]
    assert len(lines) == 2
    assert "left at once by Ctrl-C, without saving; the last checkpoint stands" in lines[1]


def test_ctrl_c_before_training_is_a_line_and_again_leaves_at_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vit.settings.resolve_run", lambda *_: interrupt(1)())
    assert main(["plan"]) == 130
    assert capfd.readouterr().err == "vit: stopped by Ctrl-C\n"

    def leave(_: int) -> None:
        raise Left

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(Left):
        os.kill(os.getpid(), signal.SIGINT)  # while Python ends
    assert capfd.readouterr().err == "vit: left at once by Ctrl-C\n"


@pytest.mark.usefixtures("no_figures")
def test_a_closed_terminal_stops_and_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny(), tmp_path / "unbroken")
    with monkeypatch.context() as patch:
        at_step(patch, 1, lambda: os.kill(os.getpid(), signal.SIGHUP))
        with pytest.raises(interruption.Stopped, match="SIGHUP after step 2") as stopped:
            train(tiny(), tmp_path / "run")
    assert stopped.value.exit_code == 129
    os.kill(os.getpid(), signal.SIGHUP)  # the shell's, after the system's
    train(tiny(), tmp_path / "run", resume=True)
    assert_same_bits(tmp_path / "unbroken", tmp_path / "run")


@pytest.mark.usefixtures("no_figures")
def test_nohup_keeps_its_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    at_step(monkeypatch, 1, lambda: os.kill(os.getpid(), signal.SIGHUP))
    assert train(tiny(), tmp_path / "run")["steps"] == 6


FINAL = """
import os, signal, sys, time
from pathlib import Path
from tests.training.tiny import tiny
from vit.training import loop

def interrupted(session):
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    time.sleep(30)

loop.finish_run = interrupted
loop.train(tiny(), Path(sys.argv[1]))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_the_final_evaluation_is_left_in_a_line_and_done_again(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-c", FINAL, str(run), name]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 128 + getattr(signal, name)
    line = (
        f"vit: stopped by {name} during the final evaluation; the last checkpoint stands; continue with --resume {run}"
    )
    assert ended.stderr.splitlines()[-1] == line
    assert not (run / "summary.json").exists()
    assert train(tiny(), run, resume=True)["steps"] == 6
    assert (run / "summary.json").exists()


def words(config: Path, run: Path) -> list[str]:
    return [sys.executable, "-m", "vit.cli", "train", "--config", str(config), "--output_dir", str(run)]


def wait_for_steps(run: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    history = run / "metrics.jsonl"
    while not (history.exists() and history.read_text().count("\n") > 3):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_terminal_that_is_closed_takes_nothing_with_it(tmp_path: Path) -> None:
    """The session leader gets SIGHUP, and writing is an error from then on."""
    process = close_terminal_while_training(tmp_path, SLOW, controlling=True)
    assert process.wait(60) == 128 + signal.SIGHUP
    assert 0 < last(tmp_path / "run").state["progress"]["step"] < 3 * 400
    assert not (tmp_path / "run/lock.json").exists()


@pytest.mark.slow
def test_a_run_without_sighup_goes_on_without_its_terminal(tmp_path: Path) -> None:
    """As a job that the shell has disowned: nothing tells it, but writing is an error."""
    process = close_terminal_while_training(tmp_path, tiny(train={"epochs": 60}), controlling=False)
    assert process.wait(120) == 0
    assert last(tmp_path / "run").state["progress"]["step"] == 3 * 60
    assert (tmp_path / "run/summary.json").exists()


def close_terminal_while_training(
    folder: Path, config: ClassificationRun, controlling: bool
) -> subprocess.Popen[bytes]:
    """A run in a terminal, its `controlling` one or not, that is closed after a few steps."""
    (folder / "recipe.yaml").write_text(dump_run_config(config, {}))
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))  # without a size no progress bar is drawn
    process = subprocess.Popen(
        words(folder / "recipe.yaml", folder / "run"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=(lambda: os.close(os.open(os.ttyname(0), os.O_RDWR))) if controlling else None,
    )
    os.close(theirs)
    drawn = threading.Event()
    reader = threading.Thread(target=drain, args=(ours, drawn), daemon=True)
    reader.start()
    wait_for_steps(folder / "run", process)
    drawn.set()
    reader.join(10)
    assert not reader.is_alive()
    assert process.poll() is None
    os.close(ours)
    return process


def drain(terminal: int, enough: threading.Event) -> None:
    """Read what is printed, which blocks who prints it otherwise."""
    while not enough.is_set():
        if select.select([terminal], [], [], 0.05)[0]:
            os.read(terminal, 1 << 16)


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 0.02, 0.2])
def test_five_ctrl_c_print_no_traceback(tmp_path: Path, pause: float) -> None:
    (tmp_path / "recipe.yaml").write_text(dump_run_config(SLOW, {}))
    run = tmp_path / "run"
    process = subprocess.Popen(words(tmp_path / "recipe.yaml", run), stderr=subprocess.PIPE, start_new_session=True)
    wait_for_steps(run, process)
    for _ in range(5):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        time.sleep(pause)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in printed
    assert b"vit: " in printed.splitlines()[-1]
