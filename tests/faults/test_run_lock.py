"""Two processes that train in one run folder spoil its history: the second is refused."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.training.test_loop import at_step
from tests.training.tiny import assert_same_bits, tiny
from vit import run_lock
from vit.cli import main
from vit.run_lock import run_locked
from vit.settings import dump_run_config
from vit.training.interruption import Stopped
from vit.training.loop import train


def lock_of(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "lock.json").read_text()))


def hold_and_die(run: Path) -> int:
    """A process that is gone without releasing the lock; its number."""
    program = f"import os, pathlib, vit.run_lock as lock; held = lock.run_locked(pathlib.Path({str(run)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; held.__enter__(); print(os.getpid(), flush=True); os._exit(9)"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 9, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_the_second_of_two_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, answers = tmp_path / "run", list[subprocess.CompletedProcess[str]]()
    words = [sys.executable, "-m", "vit.cli", "train", "--resume", str(run)]

    def resume_too() -> None:
        answers.append(subprocess.run(words, capture_output=True, text=True, timeout=200, check=False))

    with monkeypatch.context() as patch:
        at_step(patch, 4, resume_too)
        train(tiny(), run)
    assert answers[0].returncode == 2
    (line,) = [line for line in answers[0].stderr.splitlines() if line.startswith("vit:")]
    assert f"is being trained by process {os.getpid()} on " in line
    assert "Traceback" not in answers[0].stderr
    assert not (run / "lock.json").exists()
    train(tiny(), tmp_path / "unbroken")
    assert_same_bits(tmp_path / "unbroken", run)


@pytest.mark.usefixtures("no_figures")
def test_a_stopped_run_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_step(monkeypatch, 1, lambda: os.kill(os.getpid(), 15))
    with pytest.raises(Stopped):
        train(tiny(), tmp_path / "run")
    assert not (tmp_path / "run" / "lock.json").exists()


def test_a_lock_names_its_holder_while_it_is_held(tmp_path: Path) -> None:
    with run_locked(tmp_path):
        assert lock_of(tmp_path)["process"] == os.getpid()
        with pytest.raises(ValueError, match=f"is being trained by process {os.getpid()}"), run_locked(tmp_path):
            pass
        assert lock_of(tmp_path)["process"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_of_a_dead_process_is_taken_over_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dead = hold_and_die(tmp_path)
    assert lock_of(tmp_path)["process"] == dead
    with run_locked(tmp_path):
        assert lock_of(tmp_path)["process"] == os.getpid()
    assert f"was left behind by process {dead} on " in caplog.text
    assert list(tmp_path.iterdir()) == []


class Race:
    """Many who want one lock; all wait until all but one were refused."""

    def __init__(self, run: Path) -> None:
        self.run, self.inside, self.refused, self.over = run, 0, 0, threading.Event()
        threads = [threading.Thread(target=self.compete) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def compete(self) -> None:
        try:
            with run_locked(self.run):
                self.inside += 1
                self.over.wait(10)
        except ValueError:
            self.refused += 1
        if self.refused == 5:
            self.over.set()


def test_one_of_many_takes_a_lock_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    dead = {"host": os.uname().nodename, "process": 2**22 + 1, "started": 0.0, "folder": str(tmp_path)}
    for _ in range(20):
        (tmp_path / "lock.json").write_text(json.dumps(dead))
        race = Race(tmp_path)
        assert (race.inside, race.refused) == (1, 5)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"host": 3}'])
def test_a_lock_that_a_power_cut_left_empty(tmp_path: Path, content: str) -> None:
    (tmp_path / "lock.json").write_text(content)
    if content.startswith('{"'):
        with pytest.raises(ValueError, match=r"delete .*lock\.json"), run_locked(tmp_path):
            pass
        return
    with run_locked(tmp_path):
        assert lock_of(tmp_path)["process"] == os.getpid()


def test_the_number_of_a_dead_process_may_be_in_use_again(tmp_path: Path) -> None:
    with run_locked(tmp_path):
        content = lock_of(tmp_path)
    (tmp_path / "lock.json").write_text(json.dumps(content | {"started": content["started"] - 99}))
    with run_locked(tmp_path):
        assert lock_of(tmp_path) == content


def test_a_lock_is_still_held_after_the_clock_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_locked(tmp_path):
        booted = psutil.boot_time()
        monkeypatch.setattr("psutil._psplatform.boot_time", lambda: booted + 3600)
        with pytest.raises(ValueError, match=f"is being trained by process {os.getpid()}"), run_locked(tmp_path):
            pass


def test_the_same_number_as_soon_after_another_boot_is_another_process(tmp_path: Path) -> None:
    with run_locked(tmp_path):
        content = lock_of(tmp_path)
    earlier = {"boot": "another", "booted": content["booted"] - 99, "started": content["started"] - 99}
    (tmp_path / "lock.json").write_text(json.dumps(content | earlier))
    with run_locked(tmp_path):
        assert lock_of(tmp_path) == content


def test_a_lock_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    with run_locked(tmp_path):
        content = {name: value for name, value in lock_of(tmp_path).items() if name not in ("boot", "booted")}
        (tmp_path / "lock.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=f"is being trained by process {os.getpid()}"), run_locked(tmp_path):
            pass


def test_a_lock_of_another_host_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "lock.json").write_text(json.dumps({"host": "elsewhere", "process": 7, "started": 0.0}))
    with (
        pytest.raises(ValueError, match=r"process 7 on elsewhere; if .* ended, wait for 5 minutes, or delete"),
        run_locked(tmp_path),
    ):
        pass
    assert lock_of(tmp_path)["host"] == "elsewhere"
    assert [path.name for path in tmp_path.iterdir()] == ["lock.json"]


def test_a_lock_of_another_host_that_nobody_touches_was_left_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = tmp_path / "lock.json"
    lock.write_text(json.dumps({"host": "elsewhere", "process": 7, "started": 0.0}))
    for seconds, is_left in ((200, False), (400, True)):
        os.utime(lock, (time.time() - seconds,) * 2)
        refused = pytest.raises(ValueError, match="wait for 5 minutes, or delete")
        with nullcontext() if is_left else refused, run_locked(tmp_path):
            assert lock_of(tmp_path)["process"] == os.getpid()
    assert "left behind by process 7 on elsewhere" in caplog.text


def test_a_lock_that_was_taken_over_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As by another host while this one slept."""
    monkeypatch.setattr(run_lock, "_SECONDS_BETWEEN_TOUCHES", 0.01)
    lock = tmp_path / "lock.json"
    with run_locked(tmp_path):
        other = json.dumps({"host": "elsewhere", "process": 7, "started": 0.0})
        (tmp_path / "new").write_text(other)
        os.utime(tmp_path / "new", (9, 9))
        (tmp_path / "new").replace(lock)
        deadline = time.monotonic() + 10
        while "was taken over by another process" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert lock.read_text() == other
    assert lock.stat().st_mtime == 9


def test_a_container_of_the_same_name_is_another_machine(tmp_path: Path) -> None:
    with run_locked(tmp_path):
        content = lock_of(tmp_path)
    (tmp_path / "lock.json").write_text(json.dumps(content | {"namespace": "pid:[1]", "process": 2**22 + 1}))
    with pytest.raises(ValueError, match="wait for 5 minutes, or delete"), run_locked(tmp_path):
        pass


def test_a_lock_is_touched_while_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "_SECONDS_BETWEEN_TOUCHES", 0.01)
    with run_locked(tmp_path):
        os.utime(tmp_path / "lock.json", (0, 0))
        deadline = time.monotonic() + 10
        while (tmp_path / "lock.json").stat().st_mtime == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_copy_of_a_folder_in_use_is_another_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").mkdir()
    with run_locked(tmp_path / "a"):
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        with run_locked(tmp_path / "b"):
            assert lock_of(tmp_path / "b")["folder"] == str(tmp_path / "b")
    assert f"was left behind by the copying of {tmp_path / 'a'}, in which process {os.getpid()} on " in caplog.text


@pytest.mark.parametrize("words", [[], ["--resume"]])
def test_a_run_in_a_folder_in_use_is_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.yaml").write_text(dump_run_config(tiny(), {}))
    run = tmp_path / "run"
    run.mkdir()
    with run_locked(run):
        assert main(["train", "--config", str(tmp_path / "recipe.yaml"), "--output_dir", str(run), *words]) == 2
    assert "is being trained by process" in capsys.readouterr().err
    assert list(run.iterdir()) == []
