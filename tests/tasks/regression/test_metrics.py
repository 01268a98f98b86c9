"""Estimates judged by hand, and row 2 at its full size."""

from __future__ import annotations

import pytest
import torch

from vit.attention.kernel_regression import NadarayaWatson
from vit.tasks.regression.curve import Points, draw_points, even_points
from vit.tasks.regression.metrics import (
    Regression,
    estimate_in_chunks,
    evaluate_kernel,
    leave_one_out_error,
    mean_squared_error,
    regression_metrics,
)


def small() -> NadarayaWatson:
    return NadarayaWatson(torch.tensor([0.0, 1.0, 3.0]), torch.tensor([2.0, 4.0, -1.0]), torch.tensor([1.0, 2.0, 0.5]))


def test_errors_by_hand() -> None:
    """A constant curve of 4, estimated as what it is, is missed by nothing; the same seen as 1, by 3² = 9."""
    kernel = NadarayaWatson(torch.tensor([0.0, 1.0]), torch.tensor([4.0, 4.0]))
    seen = Points(torch.tensor([0.2, 5.0]), torch.tensor([4.0, 1.0]))
    assert mean_squared_error(kernel, seen, 1) == pytest.approx(4.5)
    two = NadarayaWatson(torch.tensor([0.0, 1.0]), torch.tensor([4.0, 7.0]))
    assert leave_one_out_error(two, 1) == pytest.approx(9), "each of two points is estimated as the other"


@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
def test_chunks_change_nothing(chunk: int) -> None:
    x = torch.linspace(-1, 4, 7)
    torch.testing.assert_close(estimate_in_chunks(small(), x, chunk), small()(x))
    assert leave_one_out_error(small(), chunk) == pytest.approx(leave_one_out_error(small(), 3))


def test_a_judgement_says_all() -> None:
    test = Points(torch.linspace(0, 3, 5), torch.zeros(5))
    found = evaluate_kernel(small(), test, 2)
    assert found.metrics["test.mse"] == pytest.approx(float(small()(test.x).square().mean()))
    own = small()(small().keys) - small().values
    assert found.metrics["train.mse"] == pytest.approx(float(own.square().mean()))
    assert found.metrics["train.mse_leave_one_out"] == pytest.approx(leave_one_out_error(small(), 3))
    assert found.widths.tolist() == [1.0, 2.0, 0.5]
    fixed = Regression(found.estimates, torch.tensor(1.0), dict.fromkeys(found.metrics, 9.0))
    metrics = regression_metrics(found, fixed)
    assert metrics["test.n_seen"] == 5
    assert metrics["fixed.test.mse"] == 9.0
    assert (metrics["widths.min"], metrics["widths.max"]) == (0.5, 2.0)
    assert metrics["widths.mean"] == pytest.approx(3.5 / 3)


def test_row_2_at_its_full_size() -> None:
    """6,000 points, 6,000 places, w = 1. What remains is nearly all bias: the kernel's standard deviation of 1 leaves
    e^-½ of sin x and almost nothing of sin 3x and sin 6x: 2 (1 - e^-½)² + 0.08 (1 - e^-4.5)² + 0.18 = 0.568.
    """
    train, test = draw_points("train", 6000, noise=0.5, seed=0), even_points(6000)
    error = mean_squared_error(NadarayaWatson(train.x, train.y), test, 1000)
    assert error == pytest.approx(0.568, abs=0.04)
    narrow = mean_squared_error(NadarayaWatson(train.x, train.y, 8.0), test, 1000)
    assert narrow < 0.05 < error
