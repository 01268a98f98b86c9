"""Interleaved timing: the order, the repeats and the ratios."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks import timing
from benchmarks.timing import (
    PEAK,
    Seconds,
    code_digest,
    compare_with_peak,
    matrix_product,
    quartiles,
    speedups,
    time_calls,
    time_interleaved,
)


def test_every_function_is_called_once_a_turn_in_an_order_that_is_drawn() -> None:
    called: list[str] = []
    functions = {name: partial(called.append, name) for name in "abc"}
    times = time_interleaved(functions, 20, "cpu")
    orders = ["".join(called[start : start + 3]) for start in range(0, 60, 3)]
    assert set(orders) == {"abc", "acb", "bac", "bca", "cab", "cba"}
    assert {name: len(found) for name, found in times.items()} == {"a": 20, "b": 20, "c": 20}


def test_another_measurement_has_other_orders_and_the_same_has_its_own() -> None:
    def orders(seed: str) -> list[str]:
        called: list[str] = []
        time_interleaved({name: partial(called.append, name) for name in "abcdef"}, 7, "cpu", seed=seed)
        return called

    assert orders("forward") == orders("forward") != orders("step")


def test_the_state_of_the_code_changes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "__file__", str(tmp_path / "benchmarks" / "timing.py"))
    (tmp_path / "b").mkdir()
    states = []
    for name, text in (("a.py", ""), ("a.py", "1"), ("b/a.py", "1"), ("b/a.txt", "1"), ("c.py", "1")):
        (tmp_path / name).write_text(text)
        states.append(code_digest(["a.py", "b"]))
    assert len(set(states)) == 3
    assert states[2] == states[3] == states[4], "neither code nor asked for"
    assert all(len(state) == 12 for state in states)


def test_a_short_call_is_repeated_until_it_can_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def first_are_slow() -> None:
        now[0] += 5.0 if now[0] < 10 else 0.25

    times = time_interleaved({"a": first_are_slow}, 2, "cpu", shortest=1.0)
    assert now[0] == 5.0 + 5.0 + 0.25 + 2 * (1 + 4) * 0.25
    assert [each.wall for each in times["a"]] == [0.25, 0.25]


@pytest.mark.parametrize(("seconds", "untimed"), [(0.9, 1), (1.1, 0)])
def test_a_long_call_needs_none_before_it(seconds: float, untimed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def call() -> None:
        now[0] += seconds

    times = time_interleaved({"a": call}, 2, "cpu", shortest=0.02)
    assert now[0] == pytest.approx((3 + 2 * (untimed + 1)) * seconds)
    assert [each.wall for each in times["a"]] == pytest.approx([seconds, seconds])


def test_the_processors_clock_sees_work_and_no_sleep() -> None:
    def work() -> None:
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass

    asleep, awake = (time_calls(call, 1, "cpu") for call in (lambda: time.sleep(0.05), work))
    assert asleep.wall >= 0.05 > 10 * asleep.processor
    assert awake.processor >= 0.05


def test_a_devices_queue_is_empty_when_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    now, queued = [0.0], [0.0]

    def wait() -> None:
        now[0] += queued[0]
        queued[0] = 0.0

    def launch(seconds: float) -> None:
        queued[0] += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    times = time_interleaved({"a": lambda: launch(0.25), "b": lambda: launch(0.125)}, 3, "cuda", shortest=0.5)
    assert {name: {each.wall for each in found} for name, found in times.items()} == {"a": {0.25}, "b": {0.125}}


def test_ratios_are_taken_within_a_turn() -> None:
    ours, theirs = [Seconds(1, 2), Seconds(10, 5)], [Seconds(2, 2), Seconds(30, 20)]
    assert speedups(ours, theirs) == [2, 3]
    assert speedups(ours, theirs, "processor") == [1, 4]


def test_median_and_quartiles() -> None:
    assert quartiles([4, 1, 2, 3, 5]) == {"median": 3, "lower": 2, "upper": 4}
    assert quartiles([7]) == {"median": 7, "lower": 7, "upper": 7}


def test_no_turns_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^--turns: 0 is not valid"):
        time_interleaved({"a": lambda: None}, 0, "cpu")


def test_the_products_work_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(timing._PRODUCT_SIDE, "cpu", 10)
    monkeypatch.setattr(timing, "_fastest", lambda *_: 1.0)
    product, gflop = matrix_product("bf16", "cpu")
    assert gflop == pytest.approx(2000 / 1e9)
    result = product()
    assert isinstance(result, torch.Tensor)
    assert (result.shape, result.dtype) == ((10, 10), torch.bfloat16)


@pytest.mark.parametrize(("times_as_long", "expected"), [(7.9, "fp16"), (8.1, "fp32")])
def test_a_type_without_a_fast_product_has_float32s_peak(
    times_as_long: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "packing_is_faster", lambda _: False)
    monkeypatch.setattr(timing, "_torch_product", lambda _, dtype, __: dtype)
    monkeypatch.setattr(timing, "_fastest", lambda dtype, *_: times_as_long if dtype == "fp16" else 1.0)
    assert matrix_product("fp16", "cpu") == (expected, 2 * 2048**3 / 1e9)


def test_a_share_is_of_the_product_in_the_same_turn() -> None:
    """12 GFLOP in 2, 3 and 4 s, beside products of 20 that took 1, 5 and 2: 6 of 20, 4 of 4 and 3 of 10 GFLOP/s."""
    seconds = {"ours": (2.0, 3.0, 4.0), PEAK: (1.0, 5.0, 2.0)}
    times = {name: [Seconds(wall, 9.0) for wall in walls] for name, walls in seconds.items()}
    found = compare_with_peak(times, {"ours": 12.0}, 20.0)
    assert found == {
        "share_of_peak": {"ours": 0.3},
        "product_gflop": 20,
        "peak_gflops": {"median": 10.0, "lower": 7.0, "upper": 15.0},
    }
