"""The picture of accuracy against data size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vit.figures.data_size import plot_data_size


def points(*means: float, half: float | None = 0.02) -> list[dict[str, Any]]:
    return [
        {
            "fraction": 10.0**place / 100,
            "num_images": 10 ** (place + 1),
            "mean": mean,
            "low": None if half is None else mean - half,
            "high": None if half is None else mean + half,
            "by_seed": {"0": mean - 0.01, "1": mean + 0.01},
        }
        for place, mean in enumerate(means)
    ]


def test_every_mean_seed_and_bar_is_drawn() -> None:
    figure = plot_data_size({"a": points(0.5, 0.7, 0.9), "b": points(0.6, 0.7, 0.8)}, {"b": points(0.1, 0.0, -0.1)})
    left, right = figure.axes
    assert left.get_xscale() == "log"
    lines = {line.get_label(): line for line in left.lines}
    assert np.asarray(lines["a"].get_ydata()).tolist() == [0.5, 0.7, 0.9]
    assert np.asarray(lines["b"].get_xdata()) == pytest.approx([10, 100, 1000], rel=0.02)
    drawn = [tuple(np.asarray(line.get_ydata())) for line in left.lines]
    assert (0.48, 0.52) in drawn
    assert (0.49, 0.51) in drawn
    assert [label.get_text() for label in left.get_xticklabels()] == ["10\n1 %", "100\n10 %", "1,000\n100 %"]
    assert "95 % t-interval" in left.get_title("left")
    assert right.get_title("left") == "difference to a, paired by seed"


def test_one_recipe_and_one_seed_have_neither_differences_nor_bars() -> None:
    figure = plot_data_size({"a": points(0.5, half=None)}, {})
    (axes,) = figure.axes
    assert len(axes.lines) == 2
    assert "interval" not in axes.get_title("left")


def test_an_interval_ends_at_100_percent() -> None:
    (axes,) = plot_data_size({"a": points(0.99, half=0.05)}, {}).axes
    bars = [tuple(np.asarray(line.get_ydata())) for line in axes.lines]
    assert (pytest.approx(0.94), 1.0) in bars
