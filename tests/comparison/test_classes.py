"""Accuracy by class, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from vit.comparison.classes import class_differences
from vit.evaluation.statistics import paired_share_interval


def test_by_hand() -> None:
    labels = np.array([0, 0, 0, 2, 2])
    first = np.array([True, True, False, True, True])
    second = np.array([True, False, False, True, True])
    found = class_differences(first, second, labels, 3)
    assert found.totals.tolist() == [3, 0, 2]
    assert found.first[[0, 2]] == pytest.approx([2 / 3, 1])
    assert found.second[[0, 2]] == pytest.approx([1 / 3, 1])
    assert found.differences[[0, 2]] == pytest.approx([1 / 3, 0])
    low, high = paired_share_interval(np.array([1.0, 0.0]), np.zeros(2), np.array([3.0, 2.0]))
    assert found.low[[0, 2]] == pytest.approx(low)
    assert found.high[[0, 2]] == pytest.approx(high)
    for column in found[1:]:
        assert np.isnan(column[1])
