"""Agreement against scikit-learn, and images that only one model gets right."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from vit.comparison.agreement import agreement_rates, cohens_kappa, correct_in_one_model


def test_agreement_and_kappa_are_scikit_learns() -> None:
    answers = np.random.default_rng(0).integers(5, size=(3, 101))
    answers[2, :60] = answers[0, :60]
    shares, values = agreement_rates(answers), cohens_kappa(answers)
    for first in range(3):
        for second in range(3):
            same = (answers[first] == answers[second]).mean()
            assert shares[first, second] == pytest.approx(same)
            assert values[first, second] == pytest.approx(cohen_kappa_score(answers[first], answers[second]))


def test_kappa_by_hand() -> None:
    """Answers 0011 and 0111: observed 3/4, expected 1/2·1/4 + 1/2·3/4 = 1/2."""
    assert cohens_kappa(np.array([[0, 0, 1, 1], [0, 1, 1, 1]]))[0, 1] == pytest.approx(0.5)


def test_kappa_of_one_answer_is_not_defined() -> None:
    assert np.isnan(cohens_kappa(np.array([[2, 2], [2, 2]]))).all()


def test_only_one_is_right() -> None:
    hits = np.array([[True, True, False, True, False], [False, True, True, False, False], [False] * 5])
    first, second, third = correct_in_one_model(hits)
    assert (first.tolist(), second.tolist(), third.tolist()) == ([0, 3], [2], [])
