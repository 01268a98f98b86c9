"""Cost of the statistics: the memory meter, and that both ways agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import statistics_cost
from benchmarks.statistics_cost import bench_statistics, peak_memory
from benchmarks.timing import PEAK, Seconds
from vit.attention.statistics import streamed


def test_peak_memory_counts_what_is_alive_at_once() -> None:
    def one_after_the_other() -> None:
        for _ in range(3):
            torch.ones(1000)

    def together() -> list[Tensor]:
        return [torch.ones(1000) for _ in range(3)]

    cpu = torch.device("cpu")
    assert peak_memory(one_after_the_other, cpu) == 4000
    assert peak_memory(together, cpu) == 12000


def test_both_ways_answer_the_same_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "TILE", 2**10)  # for any number of threads
    found = bench_statistics((25, 625), num_heads=3, turns=2)
    small, large = found["tokens"]
    assert [row["tokens"] for row in found["tokens"]] == [25, 625]
    assert all(row["largest_relative_difference"] < 1e-5 for row in found["tokens"])
    for row in found["tokens"]:
        assert 0 < row["times_as_fast"]["lower"] <= row["times_as_fast"]["median"] <= row["times_as_fast"]["upper"]
        assert row["milliseconds"].keys() == row["share_of_peak"].keys() == {"streamed", "map"}
    assert large["bytes"]["map"] > 3 * 625 * 625 * 4
    assert large["times_less_memory"] > small["times_less_memory"]


def test_ratios_are_taken_within_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns 1, 2 and 4 times as long, the map's call always three times ours: 2 × 3 heads × 25² × 64 products."""
    taken = {"streamed": 0.1, "map": 0.3, PEAK: 0.2}

    def time_interleaved(functions: dict[str, Any], *_: int | str, **__: Any) -> dict[str, list[Seconds]]:
        return {name: [Seconds(taken[name] * slow, taken[name]) for slow in (1, 2, 4)] for name in functions}

    monkeypatch.setattr(statistics_cost, "time_interleaved", time_interleaved)
    monkeypatch.setattr(statistics_cost, "matrix_product", lambda *_: (None, 0.002))
    told: list[str] = []
    row = bench_statistics((25,), num_heads=3, turns=3, progress=told.append)["tokens"][0]
    assert row["times_as_fast"] == row["times_less_processor"] == {"median": 3, "lower": 3, "upper": 3}
    assert row["milliseconds"]["streamed"] == {"median": 200, "lower": 150, "upper": 300}
    gflop = 2 * 3 * 25 * 25 * 64 / 1e9
    assert row["share_of_peak"] == {
        "streamed": pytest.approx(gflop / 0.1 / 0.01, abs=1e-3),
        "map": pytest.approx(gflop / 0.3 / 0.01, abs=1e-3),
    }
    assert told == [statistics_cost.line(row)]
    assert "25 tokens: streamed 200.0 ms, map 600.0 ms; 3.00 (3.00–3.00) times as fast, 24% of peak; " in told[0]
    more = {"bytes": {"streamed": 400, "map": 100}, "times_less_memory": 0.2}
    assert statistics_cost.line(row | more).endswith("; 4.0 times the memory")
    less = {"bytes": {"streamed": 100, "map": 250}, "times_less_memory": 2.5}
    assert statistics_cost.line(row | less).endswith("; 2.5 times less memory")


def test_what_is_not_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--tokens: 197 is not valid: it must be a square of 4 or more, such as 196"):
        bench_statistics((197,))
    for count in (1, -9):
        with pytest.raises(ValueError, match=f"--tokens: {count} is not valid: .* such as 4"):
            bench_statistics((count,))
    monkeypatch.setattr(statistics_cost, "_compare", lambda *_, **__: pytest.fail("one was timed"))
    with pytest.raises(ValueError, match="--tokens: 200 is not valid"):
        bench_statistics((4096, 200))
    with pytest.raises(ValueError, match="--turns"):
        bench_statistics((196,), turns=0)
