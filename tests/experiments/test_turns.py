"""Timing in turns: the order, the repeats, the ratios, and what is said of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vit.experiments import turns
from vit.experiments.turns import (
    PEAK,
    Seconds,
    against_peak,
    code_state,
    machine,
    matrix_product,
    spread,
    time_calls,
    time_in_turns,
    times_as_fast,
)
from vit.processor import MULTIPLIES_BFLOAT16


def test_every_side_is_called_once_a_turn_in_an_order_that_is_drawn() -> None:
    called: list[str] = []
    sides = {name: lambda name=name: called.append(name) for name in "abc"}
    times = time_in_turns(sides, 20, "cpu")
    orders = ["".join(called[start : start + 3]) for start in range(0, 60, 3)]
    assert set(orders) == {"abc", "acb", "bac", "bca", "cab", "cba"}
    assert {name: len(found) for name, found in times.items()} == {"a": 20, "b": 20, "c": 20}


def test_another_measurement_has_other_orders_and_the_same_has_its_own() -> None:
    def orders(draw: str) -> list[str]:
        called: list[str] = []
        time_in_turns({name: lambda name=name: called.append(name) for name in "abcdef"}, 7, "cpu", draw=draw)
        return called

    assert orders("forward") == orders("forward") != orders("step")


def test_the_state_of_the_code_changes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns.vit, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "b").mkdir()
    states = []
    for name, text in (("a.py", ""), ("a.py", "1"), ("b/a.py", "1"), ("b/a.txt", "1"), ("c.py", "1")):
        (tmp_path / name).write_text(text)
        states.append(code_state(["a.py", "b"]))
    assert len(set(states)) == 3
    assert states[2] == states[3] == states[4], "neither code nor asked for"
    assert all(len(state) == 12 for state in states)


def test_a_short_call_is_repeated_until_it_can_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(turns.time, "perf_counter", lambda: now[0])

    def first_are_slow() -> None:
        now[0] += 5.0 if now[0] < 10 else 0.25

    times = time_in_turns({"a": first_are_slow}, 2, "cpu", shortest=1.0)
    assert now[0] == 5.0 + 5.0 + 0.25 + 2 * (1 + 4) * 0.25
    assert [each.wall for each in times["a"]] == [0.25, 0.25]


@pytest.mark.parametrize(("seconds", "untimed"), [(0.9, 1), (1.1, 0)])
def test_a_long_call_needs_none_before_it(seconds: float, untimed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(turns.time, "perf_counter", lambda: now[0])

    def call() -> None:
        now[0] += seconds

    times = time_in_turns({"a": call}, 2, "cpu", shortest=0.02)
    assert now[0] == pytest.approx((3 + 2 * (untimed + 1)) * seconds)
    assert [each.wall for each in times["a"]] == pytest.approx([seconds, seconds])


def test_the_processors_clock_sees_work_and_no_sleep() -> None:
    def work() -> None:
        end = turns.time.process_time() + 0.05
        while turns.time.process_time() < end:
            pass

    asleep, awake = (time_calls(call, 1, "cpu") for call in (lambda: turns.time.sleep(0.05), work))
    assert asleep.wall >= 0.05 > 10 * asleep.processor
    assert awake.processor >= 0.05


def test_a_devices_queue_is_empty_when_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    now, queued = [0.0], [0.0]

    def wait() -> None:
        now[0] += queued[0]
        queued[0] = 0.0

    def launch(seconds: float) -> None:
        queued[0] += seconds

    monkeypatch.setattr(turns.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    times = time_in_turns({"a": lambda: launch(0.25), "b": lambda: launch(0.125)}, 3, "cuda", shortest=0.5)
    assert {name: {each.wall for each in found} for name, found in times.items()} == {"a": {0.25}, "b": {0.125}}


def test_ratios_are_taken_within_a_turn() -> None:
    ours, theirs = [Seconds(1, 2), Seconds(10, 5)], [Seconds(2, 2), Seconds(30, 20)]
    assert times_as_fast(ours, theirs) == [2, 3]
    assert times_as_fast(ours, theirs, "processor") == [1, 4]


def test_median_and_quartiles() -> None:
    assert spread([4, 1, 2, 3, 5]) == {"median": 3, "lower": 2, "upper": 4}
    assert spread([7]) == {"median": 7, "lower": 7, "upper": 7}


def test_no_turns_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^--turns: 0 is not valid"):
        time_in_turns({"a": lambda: None}, 0, "cpu")


def test_the_products_work_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(turns._PRODUCT_SIDE, "cpu", 10)
    monkeypatch.setattr(turns, "_fastest", lambda *_: 1.0)
    product, gflop = matrix_product("bf16", "cpu")
    assert gflop == pytest.approx(2000 / 1e9)
    result = product()
    assert isinstance(result, torch.Tensor)
    assert (result.shape, result.dtype) == ((10, 10), torch.bfloat16)


@pytest.mark.parametrize(("times_as_long", "expected"), [(7.9, "fp16"), (8.1, "fp32")])
def test_a_type_without_a_fast_product_has_float32s_peak(
    times_as_long: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "packing_pays", lambda _: False)
    monkeypatch.setattr(turns, "_torch_product", lambda _, dtype, __: dtype)
    monkeypatch.setattr(turns, "_fastest", lambda dtype, *_: times_as_long if dtype == "fp16" else 1.0)
    assert matrix_product("fp16", "cpu") == (expected, 2 * 2048**3 / 1e9)


def test_a_share_is_of_the_product_in_the_same_turn() -> None:
    """12 GFLOP in 2, 3 and 4 s, beside products of 20 that took 1, 5 and 2: 6 of 20, 4 of 4 and 3 of 10 GFLOP/s."""
    seconds = {"ours": (2.0, 3.0, 4.0), PEAK: (1.0, 5.0, 2.0)}
    times = {name: [Seconds(wall, 9.0) for wall in walls] for name, walls in seconds.items()}
    found = against_peak(times, {"ours": 12.0}, 20.0)
    assert found == {
        "share_of_peak": {"ours": 0.3},
        "product_gflop": 20,
        "peak_gflops": {"median": 10.0, "lower": 7.0, "upper": 15.0},
    }


def test_the_machine_and_the_versions() -> None:
    said = machine("cpu", ("timm", "no-such-library"))
    assert said["threads"] == torch.get_num_threads()
    assert set(said["versions"]) == {"python", "torch", "timm"}
    assert said["device"]
    assert said["multiplies_bfloat16"] == MULTIPLIES_BFLOAT16
