"""Metrics of stored predictions, computed in float64 and independent of the order of the samples.

Conventions. Ties: of equal logits the lower class number ranks first, for top-1 as for top-5. NLL is in nats.
Brier is the sum over classes of squared differences to the one-hot label, averaged over samples, so it lies
in [0, 2] (Brier 1950). The expected calibration error is of the top-1 probability (Guo et al. 2017), in 15 bins of
equal mass (Nguyen and O'Connor 2015): they are less biased than bins of equal width (Roelofs et al. 2022), which most
papers report, so that numbers of papers may differ.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vit.config import check_arguments
from vit.evaluation.predictions import Predictions

Array = NDArray[np.float64]
NUM_BINS = 15
_ROWS_AT_ONCE = 4096
CONVENTIONS = {
    "ties": "of equal logits the lower class number ranks first",
    "top5": "the label is among the min(5, classes) largest logits",
    "nll": "mean of -log p(label), nats",
    "brier": "sum over classes of (p - one-hot)^2, mean over samples, in [0, 2]",
    "ece_equal_mass": f"expected calibration error of the top-1 probability: {NUM_BINS} bins of equal mass (samples of "
    "equal confidence share their accuracy), mean over samples of their bin's |accuracy - confidence|",
}


class SampleScores(NamedTuple):
    """Scores of each of n samples, whose means are the metrics; paired comparisons of models start here. All (n,)."""

    ranks: NDArray[np.int64]
    """Number of classes that rank before the label: 0 for a correct prediction."""
    confidences: Array
    """Probability of the top-1 class."""
    nll: Array
    brier: Array


@check_arguments
def classification_metrics(predictions: Predictions) -> dict[str, float]:
    """Compute `top1`, `top5`, `nll`, `brier`, `ece_equal_mass` (fractions), `n_seen`, `n_total`, `n_broken`.

    ValueError if there are no samples or a logit is not finite.
    """
    scores = sample_scores(predictions)
    return {
        "top1": float((scores.ranks < 1).mean()),
        "top5": float((scores.ranks < 5).mean()),
        "nll": float(scores.nll.mean()),
        "brier": float(scores.brier.mean()),
        "ece_equal_mass": calibration_error(scores.confidences, scores.ranks == 0),
        "n_seen": len(predictions.labels),
        "n_total": predictions.num_total,
        "n_broken": predictions.num_broken,
    }


def sample_scores(predictions: Predictions) -> SampleScores:
    """Compute each sample's rank, confidence, NLL and Brier score, in the order of the predictions."""
    check_logits(predictions)
    starts = range(0, len(predictions.labels), _ROWS_AT_ONCE)
    blocks = [slice(start, start + _ROWS_AT_ONCE) for start in starts]
    scores = [_score_block(predictions.logits[rows], predictions.labels[rows]) for rows in blocks]
    return SampleScores(*(np.concatenate(column) for column in zip(*scores, strict=True)))


@check_arguments
def calibration_error(confidences: Array, correct: NDArray[np.bool_], *, num_bins: int = NUM_BINS) -> float:
    """Compute the expected calibration error: the mean over samples of their bin's |accuracy − mean confidence|.

    confidences and correct are (n,); for the bins see `equal_mass_bins`.
    """
    gaps = _tied_accuracy(confidences, correct) - confidences
    return float(sum(abs(gaps[rows].sum()) for rows in equal_mass_bins(confidences, num_bins)) / len(gaps))


@check_arguments
def calibration_curve(confidences: Array, correct: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Compute mean confidence and accuracy (m,) of each bin of `calibration_error`, in ascending order."""
    accuracies, bins = _tied_accuracy(confidences, correct), equal_mass_bins(confidences)
    return np.array([confidences[rows].mean() for rows in bins]), np.array([accuracies[rows].mean() for rows in bins])


def equal_mass_bins(confidences: Array, num_bins: int = NUM_BINS) -> list[NDArray[np.int64]]:
    """Divide samples by confidence into bins whose sizes differ by at most one, as rows of each; no bin is empty."""
    rows = np.array_split(np.argsort(confidences, kind="stable"), num_bins)
    return [part for part in rows if len(part)]


def _tied_accuracy(confidences: Array, correct: NDArray[np.bool_]) -> Array:
    """Compute (n,) the mean accuracy of samples with the same confidence, so that ties may fall into any bin."""
    _, group, counts = np.unique(confidences, return_inverse=True, return_counts=True)
    return (np.bincount(group, weights=correct) / counts)[group]


@check_arguments
def per_class_accuracy(predictions: Predictions) -> Array:
    """Compute top-1 accuracy (k,) of each class; NaN for a class without samples."""
    counts = confusion_matrix(predictions)
    totals = counts.sum(axis=1)
    return np.where(totals > 0, counts.diagonal() / np.maximum(totals, 1), np.nan)


@check_arguments
def confusion_matrix(predictions: Predictions) -> NDArray[np.int64]:
    """Count (k, k) predictions: rows are the true class, columns the top-1 class."""
    check_logits(predictions)
    num_classes = predictions.logits.shape[1]
    cells = predictions.labels * num_classes + predictions.logits.argmax(axis=1)
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def _score_block(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> SampleScores:
    rows = np.arange(len(labels))
    own = logits[rows, labels][:, None]  # n 1
    ties_before = (logits == own) & (np.arange(logits.shape[1]) < labels[:, None])  # n k
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)  # n k
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    errors = np.exp(log_probabilities)
    confidences = errors.max(axis=1)
    errors[rows, labels] -= 1
    return SampleScores(
        ranks=((logits > own) | ties_before).sum(axis=1),
        confidences=confidences,
        nll=-log_probabilities[rows, labels],
        brier=(errors**2).sum(axis=1),
    )


def check_logits(predictions: Predictions) -> None:
    """ValueError where no sample was seen, and for logits that are not finite."""
    if len(predictions.labels) == 0:
        raise ValueError(f"no sample was seen: {predictions.num_broken} of {predictions.num_total} are broken")
    broken = ~np.isfinite(predictions.logits).all(axis=1)
    if broken.any():
        first = int(predictions.indices[broken][0])
        raise ValueError(f"{int(broken.sum())} samples have logits that are not finite, the first is index {first}")
