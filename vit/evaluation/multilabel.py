"""A multi-label model's answers: the labels that reach their thresholds, and average precision.

Average precision is the sum over recall's steps of precision, without interpolation (scikit-learn's).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.metrics import average_precision_score

Array = NDArray[np.float64]


def probabilities(logits: NDArray[np.floating]) -> Array:
    """(n, k) in float64, each class by itself."""
    return np.asarray(expit(logits.astype(np.float64)))


def label_sets(logits: NDArray[np.floating], thresholds: Array) -> NDArray[np.bool_]:
    """(n, k): whether each image's probability of a class reaches the class's threshold (k,)."""
    return probabilities(logits) >= thresholds


def average_precisions(labels: NDArray[np.integer], scores: Array) -> list[float | None]:
    """Average precision of each class from labels 0 or 1 and scores, both (n, k); None for a class no image has."""
    return [
        float(average_precision_score(column, ranked)) if column.any() else None
        for column, ranked in zip(labels.T, scores.T, strict=True)
    ]


def mean_average_precision(precisions: list[float | None]) -> float | None:
    """The mean over the classes that some image has; None where there are none."""
    found = [value for value in precisions if value is not None]
    return float(np.mean(found)) if found else None
