"""Every signal that stops a run, in one, two and three processes, for every task: saved, and continued to the bit."""

from __future__ import annotations

import os
import signal
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.faults.recipes import RUNS, multilabel, train_without_figures
from tests.processes import in_processes
from tests.training.test_loop import at_step
from tests.training.tiny import assert_same_bits
from vit.config import RunConfig
from vit.training.interruption import Stopped

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOPPED_AFTER = 4
SAMPLE = [("vit", 2), ("resnet", 3), ("regression", 1)]


def stopped_in(config: RunConfig, run: Path, number: int) -> int:
    """Train, and let the last process alone be asked to stop; return the exit code."""
    rank, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if rank == count - 1:
        at_step(pytest.MonkeyPatch(), STOPPED_AFTER, lambda: os.kill(os.getpid(), number))
    for each in SIGNALS:
        signal.signal(each, signal.SIG_DFL if each != signal.SIGINT else signal.default_int_handler)
    with pytest.raises(Stopped) as stopped:
        train_without_figures(config, run)
    return stopped.value.exit_code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "processes"),
    [
        pytest.param(*cell, marks=[] if cell in SAMPLE else pytest.mark.exhaustive)
        for cell in product([*RUNS, "multilabel"], [1, 2, 3])
    ],
)
def test_stopped_by_every_signal(name: str, processes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = multilabel(tmp_path / "images") if name == "multilabel" else RUNS[name]
    in_processes(processes, train_without_figures, config, tmp_path / "unbroken")
    for number in SIGNALS:
        run = tmp_path / number.name
        assert in_processes(processes, stopped_in, config, run, number) == [128 + number] * processes
        in_processes(processes, train_without_figures, config, run, True)
        assert_same_bits(tmp_path / "unbroken", run)
    with capsys.disabled():
        print(f"\n{name}, {processes} processes: {len(SIGNALS)} of {len(SIGNALS)} bitwise equal", file=sys.stderr)
