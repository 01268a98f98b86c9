"""Temperatures with known values."""

from __future__ import annotations

import numpy as np
import pytest

from vit.comparison.calibration import TEMPERATURE_LIMITS, calibration_metrics, fit_temperature
from vit.comparison.metrics import CONVENTIONS as COMPARISON
from vit.comparison.metrics import ModelPredictions, Resampling, comparison_metrics
from vit.evaluation.metrics import CONVENTIONS as EVALUATION
from vit.evaluation.metrics import classification_metrics
from vit.evaluation.predictions import Predictions


def answers(logits: np.ndarray, labels: np.ndarray) -> Predictions:
    names = [str(number) for number in range(logits.shape[1])]
    indices = np.arange(len(labels))
    return Predictions(indices, labels.astype(np.int64), logits.astype(np.float32), names, len(labels), 0)


def coin(confidence_logit: float, right: int, wrong: int) -> Predictions:
    """Two classes; every answer is class 0 with the same logit."""
    labels = np.array([0] * right + [1] * wrong)
    return answers(np.tile([confidence_logit, 0.0], (right + wrong, 1)), labels)


def test_the_temperature_of_a_coin() -> None:
    """Three of four are right, so p should be 3/4: logit ln 3, and the logit is 4."""
    validation = coin(4.0, 30, 10)
    temperature = fit_temperature(validation)
    assert temperature == pytest.approx(4 / np.log(3), rel=1e-5)
    after = calibration_metrics(validation, temperature)
    assert after.ece_equal_mass == pytest.approx(0, abs=1e-5)
    assert after.nll == pytest.approx(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)), abs=1e-6)
    assert after.brier == pytest.approx(2 * 0.75 * 0.25, abs=1e-6)


def test_logits_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="samples have logits that are not finite"):
        fit_temperature(coin(np.nan, 3, 1))


def test_no_mistake_and_nothing_but_mistakes_have_no_best_temperature() -> None:
    assert fit_temperature(coin(4.0, 7, 0)) == TEMPERATURE_LIMITS[0]
    assert fit_temperature(coin(4.0, 0, 7)) == TEMPERATURE_LIMITS[1]


def test_it_is_the_lowest_nll() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(7, size=5000)
    logits = 3 * random.normal(size=(5000, 7)) + 4 * np.eye(7)[labels]
    validation = answers(logits, labels)
    best = fit_temperature(validation)
    nlls = [calibration_metrics(validation, best * factor).nll for factor in (0.97, 1.0, 1.03)]
    assert nlls[1] == min(nlls)
    assert nlls[1] < nlls[0]
    assert nlls[1] < nlls[2]


def test_a_temperature_undoes_the_scale_of_the_logits() -> None:
    random = np.random.default_rng(1)
    labels = random.integers(3, size=400)
    logits = random.normal(size=(400, 3)) + np.eye(3)[labels]
    assert fit_temperature(answers(logits * 8, labels)) == pytest.approx(8 * fit_temperature(answers(logits, labels)))


def test_calibration_error_by_hand() -> None:
    """Confidences .6, .6, .9, .9 with 1 of 2 and 2 of 2 right: (|1 − 1.2| + |2 − 1.8|) / 4."""
    shares = np.array([0.6, 0.6, 0.9, 0.9])
    logits = np.stack([np.log(shares), np.log(1 - shares)], axis=1)
    assert calibration_metrics(answers(logits, np.array([0, 1, 0, 0]))).ece_equal_mass == pytest.approx(0.1, abs=1e-6)


def test_a_comparison_and_an_evaluation_give_the_same_error() -> None:
    random = np.random.default_rng(2)
    predictions = answers(2 * random.normal(size=(301, 5)), random.integers(5, size=301))
    expected = classification_metrics(predictions)["ece_equal_mass"]
    assert calibration_metrics(predictions).ece_equal_mass == expected
    assert (
        comparison_metrics([ModelPredictions("one", predictions)], Resampling(10))["models"][0]["ece_equal_mass"]
        == expected
    )
    assert COMPARISON["ece_equal_mass"] == EVALUATION["ece_equal_mass"]
    assert "15 bins of equal mass" in COMPARISON["ece_equal_mass"]
