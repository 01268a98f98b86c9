"""Whether a difference between models is more than chance: intervals, paired resampling, exact tests.

Pure functions on arrays; knows neither models nor images. Wilson (1927) for one share, the paired bootstrap (Efron
1979) for differences of means, McNemar's test (1947) in its exact form, Holm (1979) for several tests at once, and
Agresti and Min (2005) for a paired difference of shares on few samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Booleans = NDArray[np.bool_]

LEVEL = 0.95
_Z = 1.959963984540054  # the normal distribution's quantile at (1 + LEVEL) / 2
_NUMBERS_AT_ONCE = 4_000_000


class Interval(NamedTuple):
    low: float
    high: float


class Discordance(NamedTuple):
    """How many samples two models answer alike, and how many only one of them gets right."""

    both: int
    only_first: int
    only_second: int
    neither: int


def wilson_interval(hits: int, total: int) -> Interval:
    """95 % interval of a share (Wilson 1927). It is inside [0, 1], and not a point where all or none are hits."""
    assert 0 <= hits <= total > 0, f"{hits} of {total}"
    share, weight = hits / total, _Z**2 / total
    middle = (share + weight / 2) / (1 + weight)
    half = _Z / (1 + weight) * math.sqrt(share * (1 - share) / total + weight / (4 * total))
    # where all or none are hits an end is exactly 1 or 0, which rounding misses
    low, high = max(middle - half, 0.0), min(middle + half, 1.0)
    return Interval(0.0 if hits == 0 else low, 1.0 if hits == total else high)


def resampled_means(values: Array, *, num_resamples: int, seed: int) -> Array:
    """Means of the columns of (n, c) over resamples of the rows with replacement: (num_resamples, c).

    A resample is the same rows for every column, so differences of columns are paired. It is drawn as the number of
    times that each row is in it, for many resamples at once.
    """
    num_rows = len(values)
    assert num_rows > 0, "no sample to draw from"
    random = np.random.default_rng(seed)
    means = np.empty((num_resamples, values.shape[1]))
    at_once = max(1, _NUMBERS_AT_ONCE // num_rows)
    for start in range(0, num_resamples, at_once):
        rows = slice(start, min(start + at_once, num_resamples))
        means[rows] = _draw_counts(random, num_rows, rows.stop - start) @ values / num_rows
    return means


def _draw_counts(random: np.random.Generator, num_rows: int, num_draws: int) -> Array:
    """(num_draws, num_rows) multinomial counts, each row's sum being `num_rows`."""
    drawn = random.integers(num_rows, size=(num_draws, num_rows))
    drawn += np.arange(num_draws)[:, None] * num_rows
    counts = np.bincount(drawn.ravel(), minlength=num_draws * num_rows)
    return counts.reshape(num_draws, num_rows).astype(np.float64)


def percentile_interval(resampled: Array) -> Interval:
    """The middle 95 % of resampled values (b,)."""
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def discordance(first: Booleans, second: Booleans) -> Discordance:
    """Counts of two models' hits (n,) on the same samples."""
    assert first.shape == second.shape, "the models were judged on different samples"
    pairs = np.bincount(2 * first.astype(np.int64) + second, minlength=4)
    return Discordance(both=int(pairs[3]), only_first=int(pairs[2]), only_second=int(pairs[1]), neither=int(pairs[0]))


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p: among the samples that one model alone gets right, either is as likely (McNemar 1947)."""
    from scipy.stats import binomtest

    total = only_first + only_second
    return float(binomtest(only_first, total, 0.5).pvalue) if total else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted for being one of several tests, in their order (Holm 1979)."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def paired_share_interval(only_first: Array, only_second: Array, totals: Array) -> tuple[Array, Array]:
    """Ends of 95 % intervals of (only_first − only_second) / totals, for few samples (Agresti and Min 2005).

    Half a sample is added to each of the four cells, so that an interval is not a point where no sample tells the
    models apart. Arrays of one shape; cut to [−1, 1].
    """
    gap, padded = only_first - only_second, totals + 2
    half = _Z * np.sqrt(np.maximum(only_first + only_second + 1 - gap**2 / padded, 0)) / padded
    return np.maximum(gap / padded - half, -1), np.minimum(gap / padded + half, 1)
