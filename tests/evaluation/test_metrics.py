from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from sklearn.calibration import calibration_curve as sklearn_curve
from torchmetrics.functional.classification import binary_calibration_error

from vit.evaluation import metrics
from vit.evaluation.predictions import Predictions


def record(
    logits: list[list[float]] | np.ndarray,
    labels: list[Any] | list[int] | np.ndarray,
    num_total: Any = None,
    num_broken: int = 0,
) -> Predictions:
    logits = np.asarray(logits, dtype=np.float32)
    return Predictions(
        indices=np.arange(len(logits)) * 2,
        labels=np.asarray(labels, dtype=np.int64),
        logits=logits,
        class_names=[f"class {i}" for i in range(logits.shape[1])],
        num_total=len(logits) + num_broken if num_total is None else num_total,
        num_broken=num_broken,
    )


def random_record(seed: int = 0, num: int = 997, num_classes: int = 7, spread: float = 2.0) -> Predictions:
    """Labels drawn from the model's own probabilities: nearly calibrated, so bins err in both directions."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num, num_classes)) * spread
    return record(logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1))


def test_by_hand() -> None:
    # softmax of log p is p
    probabilities = np.array([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]])
    found = metrics.classification_metrics(record(np.log(probabilities), [0, 1, 2], num_broken=2))
    assert found["top1"] == pytest.approx(2 / 3)
    assert found["top5"] == 1
    assert found["nll"] == pytest.approx(-np.log([0.7, 0.3, 0.6]).mean(), rel=1e-6)
    brier = (0.09 + 0.04 + 0.01) + (0.25 + 0.49 + 0.04) + (0.04 + 0.04 + 0.16)
    assert found["brier"] == pytest.approx(brier / 3, rel=1e-6)
    # three samples in fifteen bins: each its own bin
    assert found["ece_equal_mass"] == pytest.approx((0.3 + 0.5 + 0.4) / 3, rel=1e-6)
    assert (found["n_seen"], found["n_total"], found["n_broken"]) == (3, 5, 2)


def test_of_equal_logits_the_lower_class_ranks_first() -> None:
    equal = np.zeros((8, 8))
    scores = metrics.sample_scores(record(equal, np.arange(8)))
    assert scores.ranks.tolist() == list(range(8))
    found = metrics.classification_metrics(record(equal, np.arange(8)))
    assert (found["top1"], found["top5"]) == (1 / 8, 5 / 8)
    assert metrics.confusion_matrix(record(equal, np.arange(8)))[:, 0].tolist() == [1] * 8


def test_nll_of_extreme_logits_is_exact() -> None:
    found = metrics.classification_metrics(record([[1e4, 0], [0, 1e4]], [1, 1]))
    assert found["nll"] == 5000
    assert found["brier"] == 1


def test_calibration_bins_by_hand() -> None:
    confidences = np.array([0.6, 0.9, 0.8, 0.7])
    correct = np.array([True, False, True, False])
    # halves {.6 right, .7 wrong}, {.8 right, .9 wrong}: gaps |.5 - .65|, |.5 - .85|
    assert metrics.calibration_error(confidences, correct, num_bins=2) == pytest.approx((0.15 + 0.35) / 2)
    # four bins: one sample each
    assert metrics.calibration_error(confidences, correct, num_bins=4) == pytest.approx((0.4 + 0.9 + 0.2 + 0.7) / 4)
    # three: the first takes the remainder
    by_thirds = metrics.calibration_error(confidences, correct, num_bins=3)
    assert by_thirds == pytest.approx((2 * 0.15 + 0.2 + 0.9) / 4)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [1, 2, 0, 3]])
def test_samples_of_equal_confidence_share_their_accuracy(order: list[int]) -> None:
    """.6, .6, .6 with 1 of 3 right and .9 right, cut into .6 .6 | .6 .9: (2 |1/3 − .6| + |4/3 − 1.5|) / 4."""
    confidences, correct = np.array([0.6, 0.6, 0.6, 0.9])[order], np.array([True, False, False, True])[order]
    expected = (2 * (0.6 - 1 / 3) + (1.5 - 4 / 3)) / 4
    assert metrics.calibration_error(confidences, correct, num_bins=2) == pytest.approx(expected)


def test_perfect_and_hopeless_calibration() -> None:
    assert metrics.calibration_error(np.ones(10), np.ones(10, dtype=bool)) == 0
    assert metrics.calibration_error(np.ones(10), np.zeros(10, dtype=bool)) == 1


def test_parity_with_sklearn() -> None:
    predictions = random_record()
    found = metrics.classification_metrics(predictions)
    logits = predictions.logits.astype(np.float64)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    classes = np.arange(7)
    assert found["top1"] == sklearn_metrics.accuracy_score(predictions.labels, logits.argmax(axis=1))
    assert found["top5"] == sklearn_metrics.top_k_accuracy_score(predictions.labels, logits, k=5, labels=classes)
    assert found["nll"] == pytest.approx(sklearn_metrics.log_loss(predictions.labels, probabilities), rel=1e-12)
    np.testing.assert_array_equal(
        metrics.confusion_matrix(predictions),
        sklearn_metrics.confusion_matrix(predictions.labels, logits.argmax(axis=1)),
    )
    per_class = sklearn_metrics.recall_score(predictions.labels, logits.argmax(axis=1), average=None)
    np.testing.assert_allclose(metrics.per_class_accuracy(predictions), per_class)


def test_brier_of_two_classes_is_twice_sklearns() -> None:
    predictions = random_record(num_classes=2)
    logits = predictions.logits.astype(np.float64)
    positive = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    expected = 2 * sklearn_metrics.brier_score_loss(predictions.labels, positive)
    assert metrics.classification_metrics(predictions)["brier"] == pytest.approx(expected, rel=1e-12)


def test_calibration_parity_with_sklearns_quantile_bins() -> None:
    scores = metrics.sample_scores(random_record(num=15 * 66))
    correct = scores.ranks == 0
    accuracy, confidence = sklearn_curve(correct, scores.confidences, n_bins=15, strategy="quantile")
    found = metrics.calibration_curve(scores.confidences, correct)
    np.testing.assert_allclose(found, (confidence, accuracy), rtol=1e-12)
    expected = np.abs(accuracy - confidence).mean()
    assert metrics.calibration_error(scores.confidences, correct) == pytest.approx(expected, rel=1e-12)


def test_bins_of_equal_mass_follow_the_samples_where_torchmetrics_bins_follow_the_confidence() -> None:
    """Samples of one confidence a bin: both ways of binning put the same samples together."""
    confidences = (np.arange(15) + 0.5).repeat(20) / 15
    correct = np.random.default_rng(0).uniform(size=300) < confidences**2
    expected = binary_calibration_error(torch.from_numpy(confidences), torch.from_numpy(correct), n_bins=15, norm="l1")
    assert metrics.calibration_error(confidences, correct) == pytest.approx(float(expected), abs=1e-6)


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    predictions = random_record()
    whole = metrics.classification_metrics(predictions)
    monkeypatch.setattr(metrics, "_ROWS_AT_ONCE", 101)
    assert metrics.classification_metrics(predictions) == pytest.approx(whole, rel=1e-14)


def test_a_class_without_samples_has_no_accuracy() -> None:
    found = metrics.per_class_accuracy(record(np.eye(3)[[0, 2, 2]], [0, 2, 0]))
    np.testing.assert_array_equal(found, [0.5, np.nan, 1.0])


def test_logits_that_are_not_finite_are_named() -> None:
    logits = np.zeros((5, 2))
    logits[2, 1] = np.nan
    logits[4, 0] = np.inf
    with pytest.raises(ValueError, match=r"2 samples .* the first is index 4"):
        metrics.classification_metrics(record(logits, [0] * 5))


def test_nothing_seen_is_an_error() -> None:
    empty = record(np.zeros((0, 3)), [], num_broken=4)
    with pytest.raises(ValueError, match="4 of 4 are broken"):
        metrics.classification_metrics(empty)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**16), shift=st.floats(-50, 50))
def test_a_shift_of_all_logits_changes_nothing(seed: int, shift: float) -> None:
    predictions = random_record(seed, num=20, num_classes=4)
    before = metrics.classification_metrics(predictions)
    shifted = record(predictions.logits.astype(np.float64) + shift, predictions.labels)
    after = metrics.classification_metrics(shifted)
    assert after["nll"] == pytest.approx(before["nll"], abs=1e-4)
    assert 0 <= after["brier"] <= 2
    assert 0 <= after["ece_equal_mass"] <= 1
    assert after["top1"] <= after["top5"] == pytest.approx(1.0)
