"""The picture of validation accuracy against minutes, over seeds."""

from __future__ import annotations

import numpy as np
import pytest

from vit.figures import plot_accuracy_over_time


def test_the_mean_of_the_seeds_and_their_range_are_drawn() -> None:
    runs = [[(1.0, 0.5), (2.0, 0.7)], [(3.0, 0.6), (4.0, 0.9)]]
    (axes,) = plot_accuracy_over_time({"a": runs, "b": [[(1.0, 0.4), (5.0, 0.5)]]}).axes
    first, second = axes.lines
    assert np.asarray(first.get_xdata()).tolist() == [2, 3]
    assert np.asarray(first.get_ydata()).tolist() == pytest.approx([0.55, 0.8])
    assert (first.get_label(), second.get_label()) == ("a, 2 seeds: 80.0 %", "b: 50.0 %")
    (corners, *_) = (path.vertices for path in axes.collections[0].get_paths())
    assert {tuple(corner) for corner in np.asarray(corners).round(3)} == {(2, 0.5), (2, 0.6), (3, 0.7), (3, 0.9)}


def test_the_close_up_has_the_highest_accuracies_and_the_minutes_since_the_first_of_them() -> None:
    runs = [[(1.0, 0.5), (2.0, 0.7), (6.0, 0.8)]]
    whole, close = plot_accuracy_over_time({"a": runs, "b": [[(1.0, 0.4), (5.0, 0.5)]]}, close_up=0.2).axes
    assert [line.get_label() for line in close.lines] == [line.get_label() for line in whole.lines]
    assert close.get_ylim() == pytest.approx((0.6, 0.81))
    assert close.get_xlim()[0] == 2.0
    assert whole.get_ylim()[0] < 0.4
