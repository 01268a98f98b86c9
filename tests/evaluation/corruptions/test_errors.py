"""Mean corruption error, by hand."""

from __future__ import annotations

import pytest

from vit.evaluation.corruptions.errors import mean_accuracy, mean_corruption_error

OURS = {"fog": [0.1, 0.3], "snow": [0.2, 0.6]}
THEIRS = {"fog": [0.2, 0.6], "snow": [0.4, 0.4]}


def test_by_hand() -> None:
    assert mean_accuracy(OURS) == pytest.approx(0.7)
    assert mean_corruption_error(OURS, THEIRS) == pytest.approx((0.4 / 0.8 + 0.8 / 0.8) / 2)
    assert mean_corruption_error(THEIRS, THEIRS) == 1


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ValueError, match="it needs the kinds"):
        mean_corruption_error(OURS, {"fog": [0.2, 0.6]})
    with pytest.raises(ValueError, match="it needs 2 severities, not 1"):
        mean_corruption_error(OURS, THEIRS | {"snow": [0.4]})
    with pytest.raises(ValueError, match="nothing to divide by"):
        mean_corruption_error(OURS, THEIRS | {"snow": [0.0, 0.0]})
