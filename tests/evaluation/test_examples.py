"""Images that are shown: the most confident of every class before the second of any."""

from __future__ import annotations

import numpy as np
import pytest

from vit.evaluation.examples import across_classes, confidences, most_confident


def test_the_first_of_every_class_comes_before_the_second_of_any() -> None:
    classes = [0, 0, 0, 1, 1, 2]
    assert across_classes([0, 1, 2, 3, 4, 5], classes, 6) == [0, 3, 5, 1, 4, 2]
    assert across_classes([4, 1, 0, 3], classes, 3) == [4, 1, 0]
    assert across_classes([], classes, 3) == []


def test_the_most_confident_mistakes_and_successes() -> None:
    labels = np.array([0, 0, 0, 1, 1])
    logits = np.array([[0, 3], [0, 5], [2, 0], [4, 0], [0, 1]], dtype=np.float32)
    assert most_confident(logits, labels, right=False, count=9) == [1, 3, 0], "the second mistake of class 0 waits"
    assert most_confident(logits, labels, right=False, count=1) == [1]
    assert most_confident(logits, labels, right=True, count=9) == [2, 4]
    assert most_confident(logits, labels[::-1].copy() * 0, right=False, count=2) == [1, 0]


def test_confidences_by_hand() -> None:
    assert confidences(np.log(np.array([[1, 3], [8, 2]], dtype=np.float32))) == pytest.approx([0.75, 0.8])
