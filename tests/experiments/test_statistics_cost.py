"""The cost of the statistics: the meter, and that both sides answer the same question."""

import pytest
import torch

from vit.experiments import statistics_cost
from vit.experiments.statistics_cost import bench_statistics, peak_memory


def test_peak_memory_counts_what_is_alive_at_once():
    def one_after_the_other():
        for _ in range(3):
            torch.ones(1000)

    def together():
        return [torch.ones(1000) for _ in range(3)]

    cpu = torch.device("cpu")
    assert peak_memory(one_after_the_other, cpu) == 4000
    assert peak_memory(together, cpu) == 12000


def test_both_ways_answer_the_same_question():
    found = bench_statistics((25, 625), num_heads=3, turns=2)
    small, large = found["tokens"]
    assert [row["tokens"] for row in found["tokens"]] == [25, 625]
    assert all(row["largest_relative_difference"] < 1e-5 for row in found["tokens"])
    assert all(len(row["turns"]) == 2 for row in found["tokens"])
    assert large["bytes"]["map"] > 3 * 625 * 625 * 4
    assert large["times_less_memory"] > small["times_less_memory"]


def test_what_is_not_valid(monkeypatch):
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
