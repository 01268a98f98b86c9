"""Seconds by stage, by hand: nested stages are not counted twice, and errors lose no time."""

from __future__ import annotations

import time

import pytest
import torch

from vit import stopwatch
from vit.stopwatch import Stopwatch, untimed


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    return clock


def test_a_nested_stage_is_subtracted_from_the_outer_one(now: list[float]) -> None:
    watch = Stopwatch(torch.device("cpu"))
    with watch("outer"):
        now[0] += 1
        with watch("inner"):
            now[0] += 2
            with watch("outer"):
                now[0] += 4
        now[0] += 8
    assert dict(watch.seconds) == {"outer": 1 + 4 + 8, "inner": 2}


def test_a_stage_that_fails_is_timed(now: list[float]) -> None:
    watch = Stopwatch(torch.device("cpu"))

    def fail() -> None:
        now[0] += 3
        raise KeyError

    with pytest.raises(KeyError), watch("outer"), watch("inner"):
        fail()
    assert dict(watch.seconds) == {"outer": 0, "inner": 3}


def test_nothing_is_timed_without_a_stopwatch(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(time, "perf_counter", lambda: read.append("the clock") or 0.0)
    monkeypatch.setattr(stopwatch, "record_function", lambda stage: read.append(stage))
    with untimed("outer"), untimed("inner") as entered:
        assert entered is None
    with pytest.raises(KeyError), untimed("a stage that fails"):
        raise KeyError
    assert read == []
