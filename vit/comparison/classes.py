"""Accuracy of two models on every class, with intervals of the differences."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vit.evaluation.statistics import Array, Booleans, paired_share_interval


class ClassDifferences(NamedTuple):
    """One entry for each class, all (k,); NaN for a class without samples."""

    totals: NDArray[np.int64]
    first: Array
    second: Array
    differences: Array
    """first − second."""
    low: Array
    high: Array


def class_differences(
    first: Booleans, second: Booleans, labels: NDArray[np.int64], num_classes: int
) -> ClassDifferences:
    """Compare two models' hits (n,) class by class; each interval is for a single class (Agresti and Min 2005)."""
    totals = np.bincount(labels, minlength=num_classes)
    counts = [np.bincount(labels[chosen], minlength=num_classes) for chosen in (first, second, first & second)]
    only_first, only_second = ((count - counts[2]).astype(np.float64) for count in counts[:2])
    low, high = paired_share_interval(only_first, only_second, totals.astype(np.float64))
    with np.errstate(invalid="ignore"):
        one, other = counts[0] / totals, counts[1] / totals
    low[totals == 0] = high[totals == 0] = np.nan
    return ClassDifferences(totals, one, other, one - other, low, high)
