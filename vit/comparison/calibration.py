"""Calibration of predicted probabilities before and after temperature scaling (Guo et al. 2017).

The temperature has to be fitted on validation predictions; the callers see to that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from vit.config import check_arguments
from vit.evaluation.metrics import calibration_error, check_logits, sample_scores
from vit.evaluation.predictions import Predictions

TEMPERATURE_LIMITS = (0.01, 100.0)
"""Predictions without a single mistake have no best temperature: NLL keeps falling towards 0."""
_TOLERANCE = 1e-6
_ROWS_AT_ONCE = 4096


class CalibrationMetrics(NamedTuple):
    """NLL in nats, Brier in [0, 2] and expected calibration error, as `metrics` defines them."""

    nll: float
    brier: float
    ece_equal_mass: float


def scale_logits(predictions: Predictions, temperature: float) -> Predictions:
    """Divide the logits by `temperature`."""
    return replace(predictions, logits=(predictions.logits / np.float32(temperature)).astype(np.float32))


@check_arguments
def calibration_metrics(predictions: Predictions, temperature: float = 1.0) -> CalibrationMetrics:
    """Measure calibration with the logits divided by `temperature`."""
    scores = sample_scores(scale_logits(predictions, temperature))
    ece = calibration_error(scores.confidences, scores.ranks == 0)
    return CalibrationMetrics(float(scores.nll.mean()), float(scores.brier.mean()), ece)


@check_arguments
def fit_temperature(validation: Predictions) -> float:
    """Find the temperature within `TEMPERATURE_LIMITS` that has the smallest NLL.

    NLL is convex in the inverse temperature, so the zero of its slope, bracketed by the limits, is the minimum.
    ValueError for logits that are not finite.
    """
    check_logits(validation)
    from scipy.optimize import brentq

    low, high = 1 / TEMPERATURE_LIMITS[1], 1 / TEMPERATURE_LIMITS[0]
    if _nll_slope(validation, low) >= 0:
        return TEMPERATURE_LIMITS[1]
    if _nll_slope(validation, high) <= 0:
        return TEMPERATURE_LIMITS[0]
    root = brentq(lambda log: _nll_slope(validation, float(np.exp(log))), np.log(low), np.log(high), xtol=_TOLERANCE)
    return float(np.exp(-root))


def _nll_slope(predictions: Predictions, inverse: float) -> float:
    """Differentiate the mean NLL by the inverse temperature: mean(E_p[logit] − logit of the label)."""
    total = 0.0
    for start in range(0, len(predictions.labels), _ROWS_AT_ONCE):
        logits = predictions.logits[start : start + _ROWS_AT_ONCE].astype(np.float64)
        labels = predictions.labels[start : start + _ROWS_AT_ONCE]
        weights = np.exp(inverse * (logits - logits.max(axis=1, keepdims=True)))
        expected = (weights * logits).sum(axis=1) / weights.sum(axis=1)
        total += float((expected - logits[np.arange(len(labels)), labels]).sum())
    return total / len(predictions.labels)
