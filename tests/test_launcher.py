"""Processes that the launcher does not start are started, or reported in one line."""

from __future__ import annotations

import contextlib

import pytest

from vit import launcher
from vit.launcher import start_missing_processes


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCELERATE_USE_CPU", "MASTER_ADDR", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def started(monkeypatch: pytest.MonkeyPatch, parent: list[str], **environment: str) -> list[str] | None:
    """The number of processes and the command that they run, if any."""
    import psutil

    class Parent:
        def cmdline(self) -> list[str]:
            return parent

    commands: list[list[str]] = []
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(psutil.Process, "parent", lambda _: Parent())

    def run_ranks(count: int, command: list[str]) -> int:
        commands.append([str(count), *command])
        return 143

    monkeypatch.setattr(launcher, "run_ranks", run_ranks)
    monkeypatch.setattr(launcher, "end_with_parent", lambda: None)
    with contextlib.suppress(SystemExit):  # with the code of the processes: tests/faults/test_ranks.py
        start_missing_processes(["train", "--seed", "3"])
    return commands[0] if commands else None


def test_missing_processes_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {"ACCELERATE_USE_CPU": "True", "MASTER_ADDR": "127.0.0.1"}
    for words in (["--num_processes", "3", "--cpu"], ["--cpu", "--num-processes=3"]):
        command = started(monkeypatch, ["python", "accelerate", "launch", *words, "train.py"], **alone)
        assert command is not None
        assert command[0] == "3"
        assert command[-5:] == ["-m", "vit.cli", "train", "--seed", "3"]


def test_single_and_complete_launches_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = ["accelerate", "launch", "--cpu", "--num_processes", "2"]
    assert started(monkeypatch, parent) is None
    assert started(monkeypatch, parent, ACCELERATE_USE_CPU="True") is None
    assert started(monkeypatch, parent, MASTER_ADDR="127.0.0.1", WORLD_SIZE="2") is None


def test_an_unknown_number_of_processes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="was asked for several processes on a CPU and started one"):
        started(monkeypatch, ["bash"], ACCELERATE_USE_CPU="True", MASTER_ADDR="127.0.0.1")
