import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from torchmetrics.functional.classification import multiclass_calibration_error

from vit.evaluation import metrics
from vit.evaluation.predictions import Predictions


def record(logits, labels, num_total=None, num_broken=0):
    logits = np.asarray(logits, dtype=np.float32)
    return Predictions(
        indices=np.arange(len(logits)) * 2,
        labels=np.asarray(labels, dtype=np.int64),
        logits=logits,
        class_names=[f"class {i}" for i in range(logits.shape[1])],
        num_total=len(logits) + num_broken if num_total is None else num_total,
        num_broken=num_broken,
    )


def random_record(seed=0, num=997, num_classes=7, spread=2.0):
    """Labels drawn from the model's own probabilities: nearly calibrated, so bins err in both directions."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num, num_classes)) * spread
    return record(logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1))


def test_by_hand():
    # softmax of log p is p
    probabilities = np.array([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]])
    found = metrics.classification_metrics(record(np.log(probabilities), [0, 1, 2], num_broken=2))
    assert found["top1"] == pytest.approx(2 / 3)
    assert found["top5"] == 1
    assert found["nll"] == pytest.approx(-np.log([0.7, 0.3, 0.6]).mean(), rel=1e-6)
    brier = (0.09 + 0.04 + 0.01) + (0.25 + 0.49 + 0.04) + (0.04 + 0.04 + 0.16)
    assert found["brier"] == pytest.approx(brier / 3, rel=1e-6)
    # three samples in fifteen bins: each its own bin
    assert found["ece"] == pytest.approx((0.3 + 0.5 + 0.4) / 3, rel=1e-6)
    assert (found["n_seen"], found["n_total"], found["n_broken"]) == (3, 5, 2)


def test_of_equal_logits_the_lower_class_ranks_first():
    equal = np.zeros((8, 8))
    scores = metrics.sample_scores(record(equal, np.arange(8)))
    assert scores.ranks.tolist() == list(range(8))
    found = metrics.classification_metrics(record(equal, np.arange(8)))
    assert (found["top1"], found["top5"]) == (1 / 8, 5 / 8)
    assert metrics.confusion_matrix(record(equal, np.arange(8)))[:, 0].tolist() == [1] * 8


def test_nll_of_extreme_logits_is_exact():
    found = metrics.classification_metrics(record([[1e4, 0], [0, 1e4]], [1, 1]))
    assert found["nll"] == 5000
    assert found["brier"] == 1


def test_calibration_bins_by_hand():
    confidences = np.array([0.6, 0.9, 0.8, 0.7])
    correct = np.array([True, False, True, False])
    # halves {.6 right, .7 wrong}, {.8 right, .9 wrong}: gaps |.5 - .65|, |.5 - .85|
    assert metrics.calibration_error(confidences, correct, num_bins=2) == pytest.approx((0.15 + 0.35) / 2)
    # widths (.5, .75] and (.75, 1]: the same halves; thirds put .6 in the middle one
    by_width = metrics.calibration_error(confidences, correct, num_bins=4, bins="equal_width")
    assert by_width == pytest.approx((0.15 + 0.35) / 2)
    by_thirds = metrics.calibration_error(confidences, correct, num_bins=3, bins="equal_width")
    on_the_edge = metrics.calibration_error(np.array([0.5, 0.9]), correct[:2], num_bins=2, bins="equal_width")
    assert on_the_edge == pytest.approx((0.5 + 0.9) / 2)  # a bin includes its upper edge
    assert by_thirds == pytest.approx((1 * 0.4 + 3 * abs(1 / 3 - 0.8)) / 4)


def test_perfect_and_hopeless_calibration():
    assert metrics.calibration_error(np.ones(10), np.ones(10, dtype=bool)) == 0
    assert metrics.calibration_error(np.ones(10), np.zeros(10, dtype=bool)) == 1


def test_parity_with_sklearn():
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


def test_brier_of_two_classes_is_twice_sklearns():
    predictions = random_record(num_classes=2)
    logits = predictions.logits.astype(np.float64)
    positive = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    expected = 2 * sklearn_metrics.brier_score_loss(predictions.labels, positive)
    assert metrics.classification_metrics(predictions)["brier"] == pytest.approx(expected, rel=1e-12)


def test_equal_width_parity_with_torchmetrics():
    predictions = random_record()
    scores = metrics.sample_scores(predictions)
    probabilities = torch.from_numpy(predictions.logits).double().softmax(dim=1)
    expected = multiclass_calibration_error(
        probabilities, torch.from_numpy(predictions.labels), num_classes=7, n_bins=15, norm="l1"
    )
    found = metrics.calibration_error(scores.confidences, scores.ranks == 0, bins="equal_width")
    assert found == pytest.approx(float(expected), abs=1e-6)
    assert found != pytest.approx(metrics.calibration_error(scores.confidences, scores.ranks == 0), abs=1e-6)


def test_blocks_of_rows_change_nothing(monkeypatch):
    predictions = random_record()
    whole = metrics.classification_metrics(predictions)
    monkeypatch.setattr(metrics, "_ROWS_AT_ONCE", 101)
    assert metrics.classification_metrics(predictions) == pytest.approx(whole, rel=1e-14)


def test_a_class_without_samples_has_no_accuracy():
    found = metrics.per_class_accuracy(record(np.eye(3)[[0, 2, 2]], [0, 2, 0]))
    np.testing.assert_array_equal(found, [0.5, np.nan, 1.0])


def test_logits_that_are_not_finite_are_named():
    logits = np.zeros((5, 2))
    logits[2, 1] = np.nan
    logits[4, 0] = np.inf
    with pytest.raises(ValueError, match=r"2 samples .* the first is index 4"):
        metrics.classification_metrics(record(logits, [0] * 5))


def test_nothing_seen_is_an_error():
    empty = record(np.zeros((0, 3)), [], num_broken=4)
    with pytest.raises(ValueError, match="4 of 4 are broken"):
        metrics.classification_metrics(empty)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**16), shift=st.floats(-50, 50))
def test_a_shift_of_all_logits_changes_nothing(seed, shift):
    predictions = random_record(seed, num=20, num_classes=4)
    before = metrics.classification_metrics(predictions)
    shifted = record(predictions.logits.astype(np.float64) + shift, predictions.labels)
    after = metrics.classification_metrics(shifted)
    assert after["nll"] == pytest.approx(before["nll"], abs=1e-4)
    assert 0 <= after["brier"] <= 2
    assert 0 <= after["ece"] <= 1
    assert after["top1"] <= after["top5"] == pytest.approx(1.0)
