"""The machine's other load while something is timed."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from benchmarks import machine_load


def test_a_busy_machine_is_refused() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        load = machine_load.Load()
        time.sleep(1)
        other.kill()
    with pytest.raises(machine_load.BusyMachine, match="other processes took"):
        load.refuse()


def test_the_measured_process_is_not_other_load(monkeypatch: pytest.MonkeyPatch) -> None:
    load = machine_load.Load()
    before = machine_load._busy_seconds()
    time.sleep(0.2)
    monkeypatch.setattr(machine_load, "_busy_seconds", lambda: before + 5.0)
    assert load.refuse(own=6.0) == 0
    with pytest.raises(machine_load.BusyMachine):
        load.refuse(own=3.0)
