"""The two ways of measuring distance agree, and ratios are computed from the times."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from benchmarks import distance_cost, unsupported
from benchmarks.__main__ import main
from benchmarks.distance_cost import bench_distance
from benchmarks.timing import Seconds


@pytest.mark.slow  # transformers is slow to import
def test_both_ways_agree_and_the_streamed_one_needs_less() -> None:
    result = bench_distance((128, 512), width=48, depth=3, num_heads=3)
    for row in result["sizes"]:
        assert row["largest_relative_difference"] < 1e-5
        assert set(row["seconds"]) == {"plain", "streamed", "maps"}
    small, large = result["sizes"]
    assert large["bytes"]["maps"] >= 3 * 3 * large["tokens"] ** 2 * 4
    assert large["times_less_memory"] > small["times_less_memory"]


@pytest.mark.slow
def test_the_compiled_backend_is_measured_too() -> None:
    result = bench_distance((64, 80), backend="compiled", width=48, depth=2, num_heads=3)
    assert result["backend"] == "compiled"
    for row in result["sizes"]:
        assert row["largest_relative_difference"] < 1e-5
        assert row["bytes"]["streamed"] > 0


@pytest.mark.parametrize("size", [100, -16])
def test_a_size_that_is_none(size: int) -> None:
    with pytest.raises(ValueError, match=f"--sizes: {size} is not valid"):
        bench_distance((size,))


def test_every_size_has_its_own_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[str] = []

    def time_interleaved(ways: Any, *_: Any, seed: str) -> dict[str, list[Seconds]]:
        seeds.append(seed)
        return {name: [Seconds(1.0, 1.0)] for name in ways}

    without_work(time_interleaved, monkeypatch)
    bench_distance((32, 48), width=16, depth=1, num_heads=1)
    assert len(set(seeds)) == 2


def without_work(time_interleaved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distance_cost, "time_interleaved", time_interleaved)
    for name, value in (("_transformers_vit", nn.Identity()), ("_difference", 0.0), ("peak_memory", 1)):
        monkeypatch.setattr(distance_cost, name, lambda *_, value=value: value)


def test_ratios_are_taken_within_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns take 1, 2 and 4 times as long."""
    taken = {"plain": 1.0, "streamed": 2.0, "maps": 6.0}

    def time_interleaved(ways: Any, *_: Any, **__: Any) -> dict[str, list[Seconds]]:
        return {name: [Seconds(taken[name] * slow, taken[name]) for slow in (1, 2, 4)] for name in ways}

    without_work(time_interleaved, monkeypatch)
    row = bench_distance((32,), turns=3, width=16, depth=1, num_heads=1)["sizes"][0]
    three, twice = ({"median": value, "lower": value, "upper": value} for value in (3, 2))
    assert row["times_as_fast_as_maps"] == row["times_less_processor"] == three
    assert row["times_a_plain_pass"] == row["times_a_plain_pass_processor"] == twice
    assert row["seconds"]["streamed"] == {"median": 4, "lower": 3, "upper": 6}


@pytest.mark.parametrize("what", ["distance", "capture"])
def test_without_transformers_there_is_nothing_to_compare_with(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(unsupported, "find_spec", lambda _: None)
    assert main([what]) == 2
    assert capsys.readouterr().err == "vit: transformers is not installed; the extra 'bench' has it\n"
