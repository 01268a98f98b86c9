"""SIGKILL at every moment at which a run touches a file: the continued run ends with the bits of one nobody touched."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.faults.recipes import RUNS, multilabel, train_without_figures
from tests.training.tiny import assert_same_bits
from vit.config import RunConfig

TRACED = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")
SAMPLE = 8
"""Moments that are tried of each run; of the first, every one."""


# The server never computes: torch refuses backward passes in a fork of a process whose autograd threads have started.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.faults.recipes"])


def in_child(work: Callable[[], object], log: Path) -> int:
    """Run in a process of its own and return its status: 0, or minus the signal that ended it."""
    child = SERVER.Process(target=_logged, args=(work, log))
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def _logged(work: Callable[[], object], log: Path) -> None:
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(stream, 1), os.dup2(stream, 2)
    try:
        work()
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  # all that ends a process
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)


def train_traced(config: RunConfig, run: Path, kill_at: int | None, told: Path | None = None) -> None:
    """Train, and be killed right before the file event with the number `kill_at`; `told` gets their number."""
    events, inside = 0, str(run)

    def trace(name: str, arguments: tuple[Any, ...]) -> None:
        nonlocal events
        if name not in TRACED or not isinstance(arguments[0], str | os.PathLike):
            return
        if name == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if os.fspath(arguments[0]).startswith(inside):
            events += 1
            if events == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(trace)  # for ever: this process ends with the run
    train_without_figures(config, run)
    if told is not None:
        told.write_text(str(events))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("resnet", "regression") else pytest.mark.exhaustive)
        for name in [*RUNS, "multilabel"]
    ],
)
def test_killed_at_file_events(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = multilabel(tmp_path / "images") if name == "multilabel" else RUNS[name]
    log, unbroken = tmp_path / "log", tmp_path / "unbroken"
    assert in_child(partial(train_traced, config, unbroken, None, tmp_path / "events"), log) == 0, log.read_text()
    events = int((tmp_path / "events").read_text())
    moments = list(range(1, events + 1))
    if name != "vit":
        moments = sorted(random.Random(name).sample(moments, min(SAMPLE, events)))
    equal = 0
    for moment in moments:
        run = tmp_path / f"run{moment}"
        status = in_child(partial(train_traced, config, run, moment), log)
        assert status == -signal.SIGKILL, f"event {moment}: {log.read_text()}"
        status = in_child(partial(train_without_figures, config, run, resume=True), log)
        assert status == 0, f"killed before event {moment}, and then: {log.read_text()}"
        assert_same_bits(unbroken, run)
        equal += 1
    with capsys.disabled():
        print(f"\n{name}: {equal} of {len(moments)} kills bitwise equal, {events} file events", file=sys.stderr)
