"""Two processes of a launcher: one that ends takes the other with it, and a signal to the launcher saves both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.faults.test_signals import SLOW
from tests.training.test_launch import LAUNCH, ROOT, TORCHRUN
from tests.training.tiny import last
from vit.launcher import tells_first
from vit.runs import verify_checkpoint
from vit.settings import dump_run_config

LAUNCHERS = {"accelerate": LAUNCH, "torchrun": TORCHRUN}
PROGRAM = "import os, signal, sys, time; rank = os.environ['RANK']; "


class Launched:
    """Two ranks that train until they are stopped."""

    def __init__(self, launcher: list[str], folder: Path) -> None:
        self.run, self.log = folder / "run", folder / "log"
        (folder / "recipe.yaml").write_text(dump_run_config(SLOW, {}))
        words = ["train.py", "--config", str(folder / "recipe.yaml"), "--output_dir", str(self.run)]
        words += ["--device", "cpu"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "HF_HOME": str(folder / "hf")}
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, *launcher, *words],
                cwd=ROOT,
                env=environment,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        deadline = time.monotonic() + 240
        history = self.run / "metrics.jsonl"
        while not (history.exists() and history.read_text().count("\n") > 3):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        self.ranks = {
            int(process.environ()["RANK"]): process
            for process in psutil.Process(self.process.pid).children(recursive=True)
            if "RANK" in process.environ()
        }
        assert sorted(self.ranks) == [0, 1]

    def seconds_until_all_ended(self) -> float:
        started = time.monotonic()
        _, alive = psutil.wait_procs(
            [psutil.Process(process.pid) for process in self.ranks.values() if process.is_running()], 120
        )
        assert not alive
        return time.monotonic() - started

    def lines(self) -> list[str]:
        """Ours, once the launcher has ended."""
        self.process.wait(60)
        return [line for line in self.log.read_text().splitlines() if line.startswith("vit: ")]

    def stop(self) -> None:
        for process in (*self.ranks.values(), self.process):
            if process.is_running() if isinstance(process, psutil.Process) else process.poll() is None:
                process.kill()


@pytest.fixture(params=LAUNCHERS)
def launched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Launched]:
    made = Launched(LAUNCHERS[request.param], tmp_path)
    yield made
    made.stop()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_takes_the_other_with_it(launched: Launched, rank: int) -> None:
    launched.ranks[rank].kill()
    assert launched.seconds_until_all_ended() < 20
    (line,) = launched.lines()
    assert f"rank {rank} of 2 (process {launched.ranks[rank].pid}) ended without a word" in line
    assert f"continue with --resume {launched.run}" in line
    assert launched.process.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_saves_and_stops_both(launched: Launched, number: signal.Signals) -> None:
    launched.process.send_signal(number)
    launched.seconds_until_all_ended()
    (line,) = launched.lines()
    assert f"vit: stopped by {signal.Signals(number).name} after step" in line or "stopped by SIGTERM" in line
    saved = last(launched.run)
    assert saved.path is not None
    verify_checkpoint(saved.path)
    assert f"after step {saved.state['progress']['step']};" in line


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(2 if rank == '1' else 0)", 2),
        ("os.kill(os.getpid(), 9) if rank == '1' else None", 1),
    ],
)
def test_the_exit_code_is_that_of_the_rank_that_failed(program: str, code: int) -> None:
    with run_in_a_process(f"run_ranks(2, [sys.executable, '-c', {PROGRAM + program!r}])") as process:
        assert process.wait(30) == code


def test_a_rank_that_waits_for_a_dead_one_is_ended() -> None:
    waiting = PROGRAM + "sys.exit(1) if rank == '1' else time.sleep(60)"
    started = time.monotonic()
    with run_in_a_process(f"run_ranks(2, [sys.executable, '-c', {waiting!r}])") as process:
        assert process.wait(50) == 1
    assert time.monotonic() - started < 40


def test_signals_are_passed_on_to_every_rank(tmp_path: Path) -> None:
    saving = PROGRAM + (
        "signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1] + rank, 'w').close(), sys.exit(143))); "
        "open(sys.argv[1] + 'ready' + rank, 'w').close(); "
        # in short sleeps: a signal that arrives just before a sleep begins does not end it
        "[time.sleep(0.05) for _ in range(1200)]"
    )
    with run_in_a_process(f"run_ranks(2, [sys.executable, '-c', {saving!r}, {str(tmp_path / 'r')!r}])") as process:
        deadline = time.monotonic() + 30
        while len(list(tmp_path.glob("rready*"))) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
        assert process.wait(30) == 143
    assert sorted(file.name for file in tmp_path.glob("r[01]")) == ["r0", "r1"]


def test_a_signal_that_arrives_before_the_last_rank_is_started_reaches_all(tmp_path: Path) -> None:
    """The first rank sends it to the launcher, which has another nine to start."""
    saving = PROGRAM + (
        "signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1] + rank, 'w').close(), os._exit(143))); "
        "os.kill(os.getppid(), signal.SIGTERM) if rank == '0' else None; "
        "[time.sleep(0.05) for _ in range(1200)]"
    )
    with run_in_a_process(f"run_ranks(10, [sys.executable, '-c', {saving!r}, {str(tmp_path / 'r')!r}])") as process:
        assert process.wait(50) in (1, 143)  # 1: a rank that had not begun to listen
    assert (tmp_path / "r0").is_file()


@contextmanager
def run_in_a_process(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """Kill it on leaving: of a failed test, no process is left to the tests after it."""
    words = [sys.executable, "-c", f"import sys; from vit.launcher import run_ranks; sys.exit({code})"]
    with subprocess.Popen(words) as process:
        try:
            yield process
        finally:
            process.kill()


def test_one_of_several_processes_speaks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert tells_first()
    assert tells_first()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert tells_first()
    assert not tells_first()
    (marker,) = tmp_path.iterdir()
    marker.write_text("1.0")  # of a launch before this one
    assert tells_first()
    assert not tells_first()
    monkeypatch.setattr("os.getppid", lambda: 0)  # the first process of a container
    assert tells_first()


def test_the_parallel_launch_has_what_torch_asks_for(tmp_path: Path) -> None:
    program = PROGRAM + (
        "open(sys.argv[1] + rank, 'w').write(' '.join(os.environ[name] for name in "
        "('LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')))"
    )
    with run_in_a_process(f"run_ranks(3, [sys.executable, '-c', {program!r}, {str(tmp_path / 'r')!r}])") as process:
        assert process.wait(30) == 0
    rows = [(tmp_path / f"r{rank}").read_text().split() for rank in range(3)]
    assert [row[:4] for row in rows] == [[str(rank), "3", "3", "127.0.0.1"] for rank in range(3)]
    assert len({row[4] for row in rows}) == 1
