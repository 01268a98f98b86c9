"""Confidence intervals, the paired bootstrap, exact tests, and the spread over seeds.

Pure functions on arrays. Wilson (1927) for one proportion, the paired bootstrap (Efron 1979) for differences of means,
McNemar's test (1947) in its exact form, Holm (1979) for several tests at once, and Agresti and Min (2005) for a paired
difference of proportions on few samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist, fmean, stdev
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vit.config import check

Array = NDArray[np.float64]
Booleans = NDArray[np.bool_]

LEVEL = 0.95
_Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
_MAX_COUNTS = 4_000_000


class Interval(NamedTuple):
    """The two ends of a confidence interval."""

    low: float
    high: float


class Discordance(NamedTuple):
    """Counts of the samples that both models, one of them or neither gets right."""

    both: int
    only_first: int
    only_second: int
    neither: int


def wilson_interval(hits: int, total: int) -> Interval:
    """Compute the 95 % interval of hits / total (Wilson 1927), inside [0, 1] and never empty, even for 0 hits."""
    from scipy.stats import binomtest

    check(total > 0, "total", total, "an interval needs at least one sample")
    check(0 <= hits <= total, "hits", hits, f"it must be from 0 to the total, {total}")
    found = binomtest(hits, total).proportion_ci(LEVEL, method="wilson")
    return Interval(float(found.low), float(found.high))


def accuracy_in_words(top1: float, images: int) -> str:
    """The accuracy on so many test images, with its 95 % interval."""
    low, high = wilson_interval(round(top1 * images), images)
    return f"test top-1 {top1:.2%} of {images:,} images (95 % interval {low:.2%} to {high:.2%})"


def resampled_means(values: Array, *, num_resamples: int, seed: int) -> Array:
    """Compute means of the columns of (n, c) over resamples of the rows with replacement: (num_resamples, c).

    Every column has the same resamples, so differences of columns are paired.
    """
    draws = resample_counts(len(values), num_resamples=num_resamples, seed=seed)
    return np.concatenate([counts @ values / len(values) for counts in draws])


def resample_counts(num_rows: int, *, num_resamples: int, seed: int) -> Iterator[Array]:
    """Draw resamples of rows with replacement, many at once: how often each row occurs in each, (resamples, num_rows).

    The same arguments give the same resamples.
    """
    assert num_rows > 0, "no sample to draw from"
    random = np.random.default_rng(seed)
    at_once = max(1, _MAX_COUNTS // num_rows)
    for start in range(0, num_resamples, at_once):
        yield _draw_counts(random, num_rows, min(at_once, num_resamples - start))


def _draw_counts(random: np.random.Generator, num_rows: int, num_draws: int) -> Array:
    """Draw multinomial counts (num_draws, num_rows), each row summing to `num_rows`."""
    drawn = random.integers(num_rows, size=(num_draws, num_rows))
    drawn += np.arange(num_draws)[:, None] * num_rows
    counts = np.bincount(drawn.ravel(), minlength=num_draws * num_rows)
    return counts.reshape(num_draws, num_rows).astype(np.float64)


def percentile_interval(resampled: Array) -> Interval:
    """Return the middle 95 % of resampled values (b,)."""
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def bootstrap_p(differences: Array) -> float:
    """Compute the two-sided p that a difference is 0 from its resampled values (b,): at least 2 / (b + 1).

    Twice the share of resamples on the other side of 0, the observed value counted as one more (Davison and Hinkley
    1997, ch. 4).
    """
    fewer = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return min(1.0, 2 * (1 + fewer) / (1 + len(differences)))


def discordance(first: Booleans, second: Booleans) -> Discordance:
    """Count agreements and disagreements of two models' hits (n,) on the same samples."""
    assert first.shape == second.shape, "the models were evaluated on different samples"
    pairs = np.bincount(2 * first.astype(np.int64) + second, minlength=4)
    return Discordance(both=int(pairs[3]), only_first=int(pairs[2]), only_second=int(pairs[1]), neither=int(pairs[0]))


def mcnemar(only_first: int, only_second: int) -> float:
    """Compute the exact two-sided p that either model alone is right equally often (McNemar 1947)."""
    from scipy.stats import binomtest

    for name, count in (("only_first", only_first), ("only_second", only_second)):
        check(count >= 0, name, count, "it must be at least 0")
    total = only_first + only_second
    return float(binomtest(only_first, total, 0.5).pvalue) if total else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for multiple testing, keeping their order (Holm 1979)."""
    is_list = np.ndim(p_values) == 1 and np.asarray(p_values).dtype.kind in "iuf"
    check(is_list, "p_values", p_values, "give a list of numbers, one for each test")
    check(all(0 <= p <= 1 for p in p_values), "p_values", list(p_values), "each must be from 0 to 1")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def add_holm(pairs: Sequence[dict[str, Any]]) -> None:
    """Put `p_holm` beside each pair's `p`."""
    for pair, adjusted in zip(pairs, holm([pair["p"] for pair in pairs]), strict=True):
        pair["p_holm"] = adjusted


def paired_share_interval(only_first: Array, only_second: Array, totals: Array) -> tuple[Array, Array]:
    """Compute 95 % intervals (low, high) of (only_first − only_second) / totals on few samples (Agresti and Min 2005).

    Half a sample is added to each of the four cells, so that no interval is a point, even without disagreements. Arrays
    have one shape; intervals are clipped to [−1, 1].
    """
    gap, padded = only_first - only_second, totals + 2
    half = _Z * np.sqrt(np.maximum(only_first + only_second + 1 - gap**2 / padded, 0)) / padded
    return np.maximum(gap / padded - half, -1), np.minimum(gap / padded + half, 1)


def accuracy_spread(by_seed: Mapping[int, float]) -> dict[str, Any]:
    """Mean, standard deviation, extremes and the mean's 95 % t-interval of one value a seed."""
    from scipy.stats import t

    values = list(by_seed.values())
    mean, several = fmean(values), len(values) > 1
    sd = stdev(values) if several else None
    half = None if sd is None else float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * sd / math.sqrt(len(values))
    return {
        "mean": mean,
        "sd": sd,
        "low": None if half is None else mean - half,
        "high": None if half is None else mean + half,
        "min": min(values),
        "max": max(values),
        "by_seed": {str(seed): value for seed, value in by_seed.items()},
    }


def p_above(values: Sequence[float], bar: float) -> float:
    """One-sided t-test over seeds: the chance of values like these, or higher ones, if their true mean were `bar`.

    ValueError for a single value.
    """
    from scipy.stats import ttest_1samp

    check(len(values) > 1, "--seeds", len(values), "the spread over seeds needs at least two")
    return float(ttest_1samp(values, bar, alternative="greater").pvalue)
