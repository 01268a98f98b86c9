"""Whether probabilities mean what they say, before and after one temperature (Guo et al. 2017).

The temperature is fitted on validation answers; this module is never shown which set it is given, its callers are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vit.evaluation.metrics import calibration_error, sample_scores
from vit.evaluation.predictions import Predictions

LIMITS = (0.01, 100.0)
"""Of the temperature. Answers without a single mistake have no best one: it falls for ever."""
_TOLERANCE = 1e-6
_ROWS_AT_ONCE = 4096


class Calibration(NamedTuple):
    """NLL in nats, Brier in [0, 2], ECE in 15 bins of equal width of the top-1 probability."""

    nll: float
    brier: float
    ece: float


def measure(predictions: Predictions, temperature: float = 1.0) -> Calibration:
    """The three numbers of the answers with logits divided by `temperature`."""
    cooled = replace(predictions, logits=(predictions.logits / np.float32(temperature)).astype(np.float32))
    scores = sample_scores(cooled)
    ece = calibration_error(scores.confidences, scores.ranks == 0, bins="equal_width")
    return Calibration(float(scores.nll.mean()), float(scores.brier.mean()), ece)


def fit_temperature(validation: Predictions) -> float:
    """The temperature of the smallest NLL, within `LIMITS`.

    NLL is convex in the inverse temperature, so the zero of its slope, bracketed by the limits, is the minimum.
    """
    from scipy.optimize import brentq

    low, high = 1 / LIMITS[1], 1 / LIMITS[0]
    if _slope(validation, low) >= 0:
        return LIMITS[1]
    if _slope(validation, high) <= 0:
        return LIMITS[0]
    root = brentq(lambda log: _slope(validation, float(np.exp(log))), np.log(low), np.log(high), xtol=_TOLERANCE)
    return float(np.exp(-root))


def _slope(predictions: Predictions, inverse: float) -> float:
    """Derivative of the mean NLL by the inverse temperature: mean(E_p[logit] − logit of the label)."""
    total = 0.0
    for start in range(0, len(predictions.labels), _ROWS_AT_ONCE):
        logits = predictions.logits[start : start + _ROWS_AT_ONCE].astype(np.float64)
        total += _block_slope(logits, predictions.labels[start : start + _ROWS_AT_ONCE], inverse)
    return total / len(predictions.labels)


def _block_slope(logits: NDArray[np.float64], labels: NDArray[np.int64], inverse: float) -> float:
    weights = np.exp(inverse * (logits - logits.max(axis=1, keepdims=True)))
    expected = (weights * logits).sum(axis=1) / weights.sum(axis=1)
    return float((expected - logits[np.arange(len(labels)), labels]).sum())
