"""The two ways of measuring distance agree, and the bench says what it measured."""

from __future__ import annotations

import pytest

from vit.experiments.distance_cost import bench_distance


@pytest.mark.slow  # transformers is slow to import
def test_both_ways_agree_and_the_streamed_one_needs_less() -> None:
    result = bench_distance((64, 128), width=48, depth=3, num_heads=3)
    for row in result["sizes"]:
        assert row["largest_relative_difference"] < 1e-5
        assert set(row["seconds"]) == {"plain", "streamed", "maps"}
    small, large = result["sizes"]
    assert large["bytes"]["maps"] >= 3 * 3 * large["tokens"] ** 2 * 4
    assert large["times_less_memory"] > small["times_less_memory"]


def test_users_errors() -> None:
    with pytest.raises(ValueError, match="--sizes: 100 is not valid"):
        bench_distance((100,))
