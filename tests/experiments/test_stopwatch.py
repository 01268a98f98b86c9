"""Seconds by stage, by hand: what is inside a stage is not counted twice, and nothing is lost by an error."""

from __future__ import annotations

import pytest
import torch

from vit.experiments import stopwatch
from vit.experiments.stopwatch import Stopwatch


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: clock[0])
    return clock


def test_an_inner_stage_is_taken_from_the_outer_one(now: list[float]) -> None:
    watch = Stopwatch(torch.device("cpu"))
    with watch.stage("outer"):
        now[0] += 1
        with watch.stage("inner"):
            now[0] += 2
            with watch.stage("outer"):
                now[0] += 4
        now[0] += 8
    assert dict(watch.seconds) == {"outer": 1 + 4 + 8, "inner": 2}


def test_a_call_is_the_same_call(now: list[float]) -> None:
    watch = Stopwatch(torch.device("cpu"))

    def call(first: int, *, second: int) -> int:
        now[0] += 3
        return first + second

    assert watch.timed("call", call)(1, second=2) == 3
    with pytest.raises(TypeError):
        watch.timed("call", call)(1)
    assert dict(watch.seconds) == {"call": 3}


def test_an_iterator_gives_the_same_items(now: list[float]) -> None:
    def items() -> object:
        for number in range(3):
            now[0] += 1
            yield number

    watch = Stopwatch(torch.device("cpu"))
    for _ in watch.timed_iterator("wait", items()):
        now[0] += 10
    assert dict(watch.seconds) == {"wait": 3}
    assert list(watch.timed_iterator("wait", [None, 0])) == [None, 0]
