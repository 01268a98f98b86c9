"""A comparison of made-up predictions, for which every number is known."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vit.comparison.metrics import ModelPredictions, Resampling, comparison_metrics
from vit.evaluation.predictions import Predictions

FEW = Resampling(num_resamples=300)


def answering(answers: list[int], labels: list[int], *, sure: float = 3.0) -> Predictions:
    """Three classes; the answer's logit is `sure`, the others' are 0."""
    logits = np.zeros((len(labels), 3), dtype=np.float32)
    logits[np.arange(len(labels)), answers] = sure
    return Predictions(np.arange(len(labels)) * 2, np.array(labels), logits, ["ant", "bee", "cat"], len(labels), 0)


LABELS = [0, 0, 0, 0, 1, 1, 1, 2]
FIRST = answering([0, 0, 0, 0, 1, 1, 0, 2], LABELS)  # 7 of 8
SECOND = answering([0, 0, 1, 1, 1, 1, 0, 1], LABELS)  # 4 of 8, none that the first misses


def test_two_models_by_hand() -> None:
    result = comparison_metrics([ModelPredictions("a", FIRST), ModelPredictions("b", SECOND)], FEW)
    one, other = result["models"]
    assert (one["top1"], other["top1"]) == (7 / 8, 4 / 8)
    assert one["top1_interval"] == pytest.approx([0.52911, 0.97758], abs=1e-5)
    assert one["top5"] == 1
    (pair,) = result["pairs"]
    assert (pair["both"], pair["only_first"], pair["only_second"], pair["neither"]) == (4, 3, 0, 1)
    assert pair["p"] == pair["p_holm"] == 0.25  # 2 / 2³
    assert pair["top1_difference"] == 3 / 8
    assert pair["top1_interval"][0] <= 3 / 8 <= pair["top1_interval"][1]
    gap = np.log(1 + 2 * np.exp(-3)) - np.log(np.exp(3) + 2)  # right − wrong = −3
    assert pair["nll_difference"] == pytest.approx(3 * gap / 8)
    assert result["agreement"]["same_prediction"] == [[1, 5 / 8], [5 / 8, 1]]
    assert result["agreement"]["kappa"][0][1] == pytest.approx((40 - 25) / (64 - 25))
    assert result["agreement"]["error_consistency"] == [[1, 0.25], [0.25, 1]]  # (5/8 − 1/2) / (1 − 1/2)
    assert result["only_right"] == {"a": [2, 3, 7], "b": []}
    assert [(row["class"], row["images"], row["difference"]) for row in result["classes"][0]] == [
        ("ant", 4, 0.5),
        ("bee", 3, 0.0),
        ("cat", 1, 1.0),
    ]
    hits = [(row["first"], row["second"]) for row in result["classes"][0]]
    assert hits == [(1, pytest.approx(1 / 2)), (pytest.approx(2 / 3),) * 2, (1, 0)]


def test_the_label_among_the_five_largest_logits_is_a_hit_of_top5() -> None:
    """Seven classes; to the first model, the rank of an image's label is the image's number."""
    ranked = -np.arange(7, dtype=np.float32)[None].repeat(7, axis=0)
    logits, names = (ranked, np.eye(7, dtype=np.float32)), list("abcdefg")
    one, right = (Predictions(np.arange(7), np.arange(7), each, names, 7, 0) for each in logits)
    result = comparison_metrics([ModelPredictions("a", one), ModelPredictions("b", right)], FEW)
    assert [(each["top1"], each["top5"]) for each in result["models"]] == [(1 / 7, 5 / 7), (1, 1)]
    assert result["pairs"][0]["top5_difference"] == pytest.approx(-2 / 7)


def test_identical_models_are_not_told_apart() -> None:
    result = comparison_metrics([ModelPredictions("a", FIRST), ModelPredictions("a (2)", FIRST)], FEW)
    (pair,) = result["pairs"]
    assert pair["p"] == pair["p_holm"] == 1
    for name in ("top1", "top5", "nll", "brier"):
        low, high = pair[f"{name}_interval"]
        assert low <= 0 <= high
        assert pair[f"{name}_difference"] == 0
    for row in result["classes"][0]:
        assert row["low"] < 0 < row["high"]
    assert result["only_right"] == {"a": [], "a (2)": []}


def test_a_clear_difference_is_told() -> None:
    labels = [row % 3 for row in range(300)]
    better = answering([label if row % 10 else (label + 1) % 3 for row, label in enumerate(labels)], labels)
    worse = answering([label if row % 4 else (label + 1) % 3 for row, label in enumerate(labels)], labels)
    (pair,) = comparison_metrics(
        [ModelPredictions("better", better), ModelPredictions("worse", worse)], Resampling(2000)
    )["pairs"]
    assert pair["p"] < 1e-4
    assert 0 < pair["top1_interval"][0] < 0.15 < pair["top1_interval"][1]


def test_the_temperature_is_of_validation_alone() -> None:
    """The answer's logit becomes ln 6, the probability 3/4 that it is right; in the test set 0.6 ln 6, of 5 and 3."""
    labels = [0] * 4
    validation = answering([0, 0, 0, 1], labels, sure=5.0)
    calm = comparison_metrics([ModelPredictions("a", FIRST, validation)], FEW)["models"][0]
    assert calm["calibration"]["n_validation"] == 4
    assert calm["calibration"]["temperature"] == pytest.approx(5 / np.log(6), rel=1e-5)
    assert calm["calibration"]["nll"] == pytest.approx(np.log(1 + 2 / 6**0.6) + np.log(6**0.6) / 8, rel=1e-5)
    assert calm["nll"] == pytest.approx(np.log(1 + 2 / np.exp(3)) + 3 / 8)
    for test in (SECOND, answering([0] * 8, LABELS, sure=0.1)):
        again = comparison_metrics([ModelPredictions("a", test, validation)], FEW)["models"][0]
        assert again["calibration"]["temperature"] == calm["calibration"]["temperature"]
    without = comparison_metrics([ModelPredictions("a", FIRST, None, "no validation images")], FEW)["models"][0]
    assert without["calibration"] == {"reason": "no validation images"}


def test_three_models_are_three_pairs_adjusted_together() -> None:
    result = comparison_metrics(
        [ModelPredictions("a", FIRST), ModelPredictions("b", SECOND), ModelPredictions("c", FIRST)], FEW
    )
    assert [(pair["first"], pair["second"]) for pair in result["pairs"]] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [pair["p_holm"] for pair in result["pairs"]] == [0.75, 1.0, 0.75]
    assert len(result["classes"]) == 3


def test_the_result_is_json() -> None:
    """Also where a number is not defined: kappa of models that give one answer."""
    same = answering([1, 1], [1, 1])
    result = comparison_metrics([ModelPredictions("a", same), ModelPredictions("b", same)], FEW)
    assert result["agreement"]["kappa"] == [[None, None], [None, None]]
    json.dumps(result, allow_nan=False)


def test_other_images_are_a_defect() -> None:
    with pytest.raises(AssertionError, match="other images"):
        comparison_metrics([ModelPredictions("a", FIRST), ModelPredictions("b", answering([0, 1], [0, 1]))], FEW)
