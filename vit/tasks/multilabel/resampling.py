"""Average precision over resamples of the images: the bootstrap of `vit compare`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vit.evaluation.statistics import Array, resample_counts

_AT_ONCE = 32
"""Resamples whose counts fit into a processor's cache together with their sums."""
Counts = NDArray[np.int32]


def resampled_average_precisions(
    labels: NDArray[np.uint8], scores: Sequence[Array], *, num_resamples: int, seed: int
) -> Array:
    """Average precision of several models' scores (n, k) over resamples of the images: (models, num_resamples, k).

    Every model has the same resamples. NaN where a resample holds no image of the class.
    """
    num_images, num_classes = labels.shape
    ranked = [[_Ranking(labels[:, k], each[:, k]) for k in range(num_classes)] for each in scores]
    found = np.empty((len(scores), num_resamples, num_classes))
    start = 0
    for counts in resample_counts(num_images, num_resamples=num_resamples, seed=seed):
        for part in np.array_split(counts.astype(np.int32), -(-len(counts) // _AT_ONCE)):
            for model, rankings in enumerate(ranked):
                for k, ranking in enumerate(rankings):
                    found[model, start : start + len(part), k] = ranking.average_precision(part)
            start += len(part)
    return found


def mean_over_classes(precisions: Array) -> Array:
    """The mean over the last axis, without NaN; NaN where there is nothing else."""
    known = ~np.isnan(precisions)
    sums, counts = np.where(known, precisions, 0.0).sum(axis=-1), known.sum(axis=-1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


class _Ranking:
    """The images in order of one class's scores, best first; equal scores are one step of recall (scikit-learn)."""

    def __init__(self, labels: NDArray[np.uint8], scores: Array) -> None:
        self.order = np.argsort(-scores, kind="stable")
        ordered = scores[self.order]
        last_of_equals = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
        ends = last_of_equals[np.searchsorted(last_of_equals, np.arange(len(ordered)))]
        self.positives = np.flatnonzero(labels[self.order])
        self.ends = ends[self.positives]
        """For each positive, the last place with its score."""
        self.last_positives = np.searchsorted(self.positives, self.ends, side="right") - 1

    def average_precision(self, counts: Counts) -> Array:
        """(b,) for resamples in which the images occur `counts` (b, n) times."""
        ordered = counts.take(self.order, axis=1)
        seen = ordered.cumsum(axis=1, dtype=np.int32).take(self.ends, axis=1)
        positives = ordered.take(self.positives, axis=1)
        right = positives.cumsum(axis=1, dtype=np.int32).take(self.last_positives, axis=1)
        total = positives.sum(axis=1)
        sums = (positives * (right / np.maximum(seen, 1))).sum(axis=1)
        return np.where(total > 0, sums / np.maximum(total, 1), np.nan)
