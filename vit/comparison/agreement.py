"""Agreement between models' predictions, and the images that only one model gets right.

Pure functions on arrays. Cohen (1960) for agreement beyond chance; Geirhos et al. (2020) for agreement in being right.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vit.config import check_arguments

Integers = NDArray[np.int64]
Array = NDArray[np.float64]


@check_arguments
def agreement_rates(predicted: Integers) -> Array:
    """Compute (models, models) fractions of samples with the same prediction, from classes (models, n)."""
    return (predicted[:, None] == predicted[None]).mean(axis=2)


@check_arguments
def cohens_kappa(predicted: Integers) -> Array:
    """Compute (models, models) Cohen's kappa of classes (models, n); NaN where both always predict the same class."""
    observed = agreement_rates(predicted)
    num_classes = int(predicted.max()) + 1
    frequencies = np.stack([np.bincount(row, minlength=num_classes) for row in predicted]) / predicted.shape[1]
    expected = frequencies @ frequencies.T
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(expected < 1, (observed - expected) / (1 - expected), np.nan)


def correct_in_one_model(hits: NDArray[np.bool_]) -> list[Integers]:
    """List for each model the samples that it alone gets right; hits are (models, n)."""
    alone = hits.sum(axis=0) == 1
    return [np.flatnonzero(alone & row) for row in hits]
