"""Numbers computed from stored predictions, all in float64, all independent of the order the samples came in.

Conventions. Ties: of equal logits the lower class number ranks first, for top-1 as for top-5. NLL is in nats.
Brier is the sum over classes of squared differences to the one-hot label, averaged over samples, so it lies
in [0, 2] (Brier 1950). ECE is of the top-1 probability (Guo et al. 2017), by default in bins of equal mass
(Nguyen and O'Connor 2015). This room does not know the model or the data the predictions came from.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vit.evaluation.predictions import Predictions

Array = NDArray[np.float64]
NUM_BINS = 15
_ROWS_AT_ONCE = 4096
CONVENTIONS = {
    "ties": "of equal logits the lower class number ranks first",
    "top5": "the label is among the min(5, classes) largest logits",
    "nll": "mean of -log p(label), nats",
    "brier": "sum over classes of (p - one-hot)^2, mean over samples, in [0, 2]",
    "ece": f"top-1 probability, {NUM_BINS} equal-mass bins, sample-weighted |accuracy - confidence|",
}


class SampleScores(NamedTuple):
    """What each of n samples contributes to a mean; paired comparisons of two models start here. All (n,)."""

    ranks: NDArray[np.int64]
    """Classes that rank before the label: 0 where the model is right."""
    confidences: Array
    """Probability of the top-1 class."""
    nll: Array
    brier: Array


def classification_metrics(predictions: Predictions) -> dict[str, float]:
    """`top1`, `top5`, `nll`, `brier`, `ece` (fractions, not percent), `n_seen`, `n_total`, `n_broken`.

    ValueError: nothing was seen, or a logit is not finite.
    """
    scores = sample_scores(predictions)
    return {
        "top1": float((scores.ranks < 1).mean()),
        "top5": float((scores.ranks < 5).mean()),
        "nll": float(scores.nll.mean()),
        "brier": float(scores.brier.mean()),
        "ece": calibration_error(scores.confidences, scores.ranks == 0),
        "n_seen": len(predictions.labels),
        "n_total": predictions.num_total,
        "n_broken": predictions.num_broken,
    }


def sample_scores(predictions: Predictions) -> SampleScores:
    """Every sample's rank, confidence, NLL and Brier score, in the order of the predictions."""
    _check_logits(predictions)
    starts = range(0, len(predictions.labels), _ROWS_AT_ONCE)
    blocks = [slice(start, start + _ROWS_AT_ONCE) for start in starts]
    scores = [_score_block(predictions.logits[rows], predictions.labels[rows]) for rows in blocks]
    return SampleScores(*(np.concatenate(column) for column in zip(*scores, strict=True)))


def calibration_error(
    confidences: Array,
    correct: NDArray[np.bool_],
    *,
    num_bins: int = NUM_BINS,
    bins: Literal["equal_mass", "equal_width"] = "equal_mass",
) -> float:
    """Expected calibration error: the mean over samples of their bin's |accuracy − mean confidence|.

    confidences and correct are (n,). Bins of equal mass differ by at most one sample; equal confidences keep
    the order of the samples. Bins of equal width are (i/m, (i+1)/m].
    """
    order = np.argsort(confidences, kind="stable")
    gaps = (correct - confidences)[order]
    if bins == "equal_mass":
        parts = np.array_split(gaps, num_bins)
    else:
        edges = np.linspace(0, 1, num_bins + 1)[1:-1]
        parts = np.split(gaps, np.searchsorted(confidences[order], edges, side="right"))
    return float(sum(abs(part.sum()) for part in parts) / len(gaps))


def per_class_accuracy(predictions: Predictions) -> Array:
    """(k,) part of each class's samples that are recognised (top-1); NaN for a class without samples."""
    counts = confusion_matrix(predictions)
    totals = counts.sum(axis=1)
    return np.where(totals > 0, counts.diagonal() / np.maximum(totals, 1), np.nan)


def confusion_matrix(predictions: Predictions) -> NDArray[np.int64]:
    """(k, k) counts: rows are the true class, columns the top-1 answer."""
    _check_logits(predictions)
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


def _check_logits(predictions: Predictions) -> None:
    if len(predictions.labels) == 0:
        raise ValueError(f"no sample was seen: {predictions.num_broken} of {predictions.num_total} are broken")
    broken = ~np.isfinite(predictions.logits).all(axis=1)
    if broken.any():
        first = int(predictions.indices[broken][0])
        raise ValueError(f"{int(broken.sum())} samples have logits that are not finite, the first is index {first}")
