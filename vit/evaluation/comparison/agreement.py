"""Whether models give the same answers, and on which images one of them is alone in being right.

Pure functions on arrays. Cohen (1960) for agreement beyond chance; Geirhos et al. (2020) for agreement in being right.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Array = NDArray[np.float64]


def same_answers(answers: Integers) -> Array:
    """(models, models) share of samples with the same answer; answers are (models, n)."""
    return (answers[:, None] == answers[None]).mean(axis=2)


def kappas(answers: Integers) -> Array:
    """(models, models) Cohen's kappa of answers (models, n); NaN where both always give one and the same answer."""
    observed = same_answers(answers)
    num_answers = int(answers.max()) + 1
    parts = np.stack([np.bincount(row, minlength=num_answers) for row in answers]) / answers.shape[1]
    expected = parts @ parts.T
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(expected < 1, (observed - expected) / (1 - expected), np.nan)


def only_right(hits: NDArray[np.bool_]) -> list[Integers]:
    """For each model the samples that it alone gets right; hits are (models, n)."""
    alone = hits.sum(axis=0) == 1
    return [np.flatnonzero(alone & row) for row in hits]
