"""Functions called in several processes at once: their results, their output, and how they end early."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from vit.experiments import jobs
from vit.experiments.jobs import Job, check_at_once, run_jobs
from vit.tasks.task import NonFinite
from vit.training.interruption import Stopped, StopSignals

LONGEST = 60.0
"""Seconds that a job waits for what should come in moments."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are forked from one that has imported all that they need."""
    multiprocessing.set_forkserver_preload(["tests.experiments.test_jobs"])
    monkeypatch.setattr(jobs, "_CONTEXT", multiprocessing.get_context("forkserver"))


def job(tmp_path: Path, function: Any, *arguments: Any) -> Job:
    return Job("first run", function, arguments, tmp_path / "logs" / "train.log")


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + LONGEST
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} never came"
        time.sleep(0.02)


def facts(folder: Path, mine: str, other: str) -> tuple[int, int, int]:
    """Return facts of this process, once the other one has begun too."""
    (folder / mine).touch()
    wait_for(folder / other)
    return os.getpid(), os.getsid(0), torch.get_num_threads()


def test_two_jobs_are_called_at_once_with_half_of_the_threads_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    both = {name: job(tmp_path, facts, tmp_path, *names) for name, names in (("a", "ab"), ("b", "ba"))}
    begun: list[str] = []
    results: dict[str, Any] = {}
    run_jobs(both, 2, begun.append, results.__setitem__)
    assert begun == ["a", "b"]
    assert results["a"][2] == results["b"][2] == 3
    assert len({results["a"][0], results["b"][0], os.getpid()}) == 3
    assert os.getsid(0) not in (results["a"][1], results["b"][1])  # a Ctrl-C in the terminal is this process's alone


@pytest.mark.usefixtures("quick")
def test_a_job_alone_has_its_share_of_the_threads_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    found: dict[int, Any] = {}
    run_jobs({0: job(tmp_path, facts, tmp_path, "a", "a")}, 2, ended=found.__setitem__)
    assert found[0][2] == 3


def speak(text: str) -> None:
    print(text)
    print(f"{text} went wrong", file=sys.stderr)


def test_what_jobs_print_is_added_to_their_logs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = job(tmp_path, speak, "hello")
    run_jobs({1: said, 2: said}, 1)
    assert sorted(said.log.read_text().splitlines()) == ["hello"] * 2 + ["hello went wrong"] * 2
    assert capfd.readouterr() == ("", "")


def patient(folder: Path) -> None:
    """What a training does: the step in progress ends after a signal, and something is saved."""
    with StopSignals() as signals:
        (folder / "begun").touch()
        deadline = time.monotonic() + LONGEST
        while not signals.signal_number and time.monotonic() < deadline:
            time.sleep(0.02)
        (folder / "saved").touch()
        raise Stopped(signals.signal_number, 3)


def fail(folder: Path, error: Exception | int) -> None:
    wait_for(folder / "begun")
    if isinstance(error, int):
        os.kill(os.getpid(), error)
    elif isinstance(error, SystemError):
        os._exit(error.args[0])
    assert isinstance(error, Exception)
    raise error


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (ValueError("width: 3 is odd"), ValueError, "first run: width: 3 is odd"),
        (NonFinite("the loss is not finite"), NonFinite, "first run: the loss is not finite"),
        (KeyError("a bug"), ChildProcessError, "first run: its process failed; the end of .*train.log may say why"),
        (SystemError(7), ChildProcessError, "first run: its process failed"),
        (SystemError(255), ChildProcessError, "first run: its process failed"),
        (signal.SIGKILL, ChildProcessError, "first run: its process was killed by SIGKILL"),
        (signal.SIGTERM, Stopped, "stopped by SIGTERM; the same command continues"),
    ],
)
def test_when_one_fails_the_others_save_and_the_error_says_which(
    error: Exception | int, expected: type[Exception], message: str, tmp_path: Path
) -> None:
    both = {"fails": job(tmp_path, fail, tmp_path, error), "saves": job(tmp_path, patient, tmp_path)}
    with pytest.raises(expected, match=message):
        run_jobs(both, 2)
    assert (tmp_path / "saved").exists()
    if isinstance(error, KeyError):
        assert both["fails"].log.read_text().rstrip().endswith("KeyError: 'a bug'")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_of_them_and_none_is_begun_after_it(number: int, tmp_path: Path) -> None:
    begun: list[int] = []
    three = {key: job(tmp_path, partial(patient, tmp_path)) for key in range(3)}

    def begin(key: int) -> None:
        begun.append(key)
        if key == 1:
            wait_for(tmp_path / "begun")
            os.kill(os.getpid(), number)

    with pytest.raises(Stopped, match=f"stopped by {signal.Signals(number).name}; ") as stopped:
        run_jobs(three, 3, begin)
    assert stopped.value.exit_code == 128 + number
    assert (tmp_path / "saved").exists()
    assert begun == [0, 1]


def stubborn(folder: Path, answer: str | OSError) -> str:
    """Answer after a signal, or fail."""
    with StopSignals() as signals:
        (folder / "begun").touch()
        deadline = time.monotonic() + LONGEST
        while not signals.signal_number and time.monotonic() < deadline:
            time.sleep(0.02)
    if isinstance(answer, OSError):
        raise answer
    return answer


@pytest.mark.usefixtures("quick")
def test_an_answer_that_nobody_reads_any_more_does_not_hold_up_the_end(tmp_path: Path) -> None:
    both = {
        "fails": job(tmp_path, fail, tmp_path, ValueError("no")),
        "long": job(tmp_path, stubborn, tmp_path, "x" * 10**6),
    }
    with pytest.raises(ValueError, match="first run: no"):
        run_jobs(both, 2)


@pytest.mark.usefixtures("quick")
def test_a_job_that_could_not_save_is_named(tmp_path: Path) -> None:
    def begin(key: int) -> None:
        if key == 1:
            wait_for(tmp_path / "begun")
            os.kill(os.getpid(), signal.SIGTERM)

    both = {0: job(tmp_path, stubborn, tmp_path, OSError("disk full")), 1: job(tmp_path, patient, tmp_path)}
    with pytest.raises(ChildProcessError, match="its process failed while it was stopped"):
        run_jobs(both, 2, begin)


def blocked() -> set[int]:
    """Signals that wait while the process imports."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


class _ToldWhenRead:
    """An argument that becomes the blocked signals of the process that reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return blocked, ()


def test_no_ctrl_c_meets_a_process_that_imports(tmp_path: Path) -> None:
    found: dict[int, Any] = {}
    run_jobs({0: job(tmp_path, set, _ToldWhenRead())}, 1, ended=found.__setitem__)
    assert {signal.SIGINT, signal.SIGTERM} <= found[0]


PARENT = """\
import sys
from pathlib import Path
from tests.experiments import test_jobs
from vit.experiments.jobs import Job, run_jobs
if __name__ == "__main__":
    job = Job("orphan", test_jobs.orphan, (Path(sys.argv[1]),), Path(sys.argv[1]) / "log")
    run_jobs({0: job}, 1, lambda _: print("begun", flush=True))
"""


def orphan(folder: Path) -> None:
    time.sleep(1)
    (folder / "orphan").touch()


@pytest.mark.slow
def test_a_job_whose_parent_was_killed_while_it_imported_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    root = Path(__file__).parents[2]
    command = [sys.executable, str(tmp_path / "parent.py"), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(root)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        wait_for(tmp_path / "log")
        time.sleep(0.3)  # the job's process has begun to import, which takes seconds
        process.kill()
    time.sleep(10)
    assert not (tmp_path / "orphan").exists()


def test_a_number_at_once_is_one_process_each(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--at_once: 0 is not valid: it must be at least 1"):
        check_at_once(0)
    check_at_once(2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_at_once(1)
    with pytest.raises(ValueError, match="--at_once: 2 is not valid: a launcher already joins several processes"):
        check_at_once(2)
