"""Intervals and tests against hand-worked numbers, scipy, and each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vit.evaluation.statistics import (
    Discordance,
    bootstrap_p,
    discordance,
    holm,
    mcnemar,
    paired_share_interval,
    percentile_interval,
    resample_counts,
    resampled_means,
    wilson_interval,
)


@given(st.integers(1, 400).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_the_ends_of_wilsons_interval_solve_its_equation(case: tuple[int, int]) -> None:
    """(share − p)² = z² p (1 − p) / n at both ends p, and the share between them."""
    hits, total = case
    share, (low, high) = hits / total, wilson_interval(hits, total)
    for end in (low, high):
        assert (share - end) ** 2 == pytest.approx(3.841458820694124 * end * (1 - end) / total, abs=1e-12)
    assert 0 <= low <= share <= high <= 1
    assert high - low > 0


def test_wilson_where_every_sample_is_a_hit() -> None:
    """z² = 3.8415: the lower end of 10 of 10 is 10 / (10 + z²)."""
    assert wilson_interval(10, 10) == pytest.approx((10 / 13.841459, 1.0))
    assert wilson_interval(0, 10) == pytest.approx((0.0, 3.841459 / 13.841459))


@pytest.mark.parametrize(("only_first", "only_second", "p"), [(1, 6, 0.125), (0, 0, 1), (3, 3, 1), (0, 10, 2 / 1024)])
def test_mcnemar_by_hand(only_first: int, only_second: int, p: float) -> None:
    """1 of 7: 2 (C(7,0) + C(7,1)) / 2⁷ = 16 / 128."""
    assert mcnemar(only_first, only_second) == pytest.approx(p)
    assert mcnemar(only_second, only_first) == pytest.approx(p)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_twice_the_smaller_tail(only_first: int, only_second: int) -> None:
    total, fewer = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(total, count) for count in range(fewer + 1)) / 2**total
    assert mcnemar(only_first, only_second) == pytest.approx(min(1, 2 * tail))


def test_discordance_counts_each_cell() -> None:
    first = np.array([True, True, True, True, False, False, False])
    second = np.array([True, False, True, False, True, False, True])
    assert discordance(first, second) == Discordance(both=2, only_first=2, only_second=2, neither=1)
    assert discordance(first[:2], second[:2]) == Discordance(both=1, only_first=1, only_second=0, neither=0)


def test_holm_by_hand() -> None:
    """.01·3, then .02·2, then .04·1, each at least the one before it."""
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.5, 0.6]) == pytest.approx([1.0, 1.0])


def test_a_resample_has_the_same_rows_in_every_column() -> None:
    values = np.random.default_rng(3).normal(size=(37, 1)) @ np.array([[1.0, 2.0, 1.0]])
    means = resampled_means(values, num_resamples=50, seed=5)
    np.testing.assert_allclose(means[:, 1], 2 * means[:, 0])
    np.testing.assert_array_equal(means[:, 0], means[:, 2])
    assert means[:, 0].std() > 0


def test_a_resample_has_as_many_rows_as_there_are() -> None:
    """The counts of a resample are whole and sum to n, whatever is drawn at once."""
    counts = resampled_means(np.eye(7), num_resamples=600_000, seed=1) * 7
    np.testing.assert_allclose(counts, counts.round(), atol=1e-9)
    np.testing.assert_allclose(counts.sum(axis=1), 7)
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=0.01)
    np.testing.assert_allclose(counts.var(axis=0), 6 / 7, atol=0.01)  # multinomial: n · 1/n · (1 − 1/n)


def test_the_bootstrap_interval_is_scipys() -> None:
    gaps = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], p=[0.1, 0.7, 0.2], size=211)
    ours = percentile_interval(resampled_means(gaps[:, None], num_resamples=10_000, seed=2)[:, 0])
    theirs = stats.bootstrap((gaps,), np.mean, method="percentile", n_resamples=10_000, rng=7).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.006)


def test_the_same_seed_gives_the_same_resamples() -> None:
    values = np.arange(13.0)[:, None]
    first, again, other = (resampled_means(values, num_resamples=20, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_paired_shares_by_hand() -> None:
    """b = 5, c = 1, n = 18: middle 4/20; half 1.96 √(7 − 16/20) / 20."""
    low, high = paired_share_interval(np.array([5.0]), np.array([1.0]), np.array([18.0]))
    half = 1.959964 * math.sqrt(6.2) / 20
    assert (low[0], high[0]) == pytest.approx((0.2 - half, 0.2 + half), abs=1e-6)


def test_paired_shares_of_like_models_are_no_point() -> None:
    low, high = paired_share_interval(np.array([0.0]), np.array([0.0]), np.array([4.0]))
    assert low[0] < -0.2
    assert high[0] == -low[0]


def test_a_bootstrap_p_counts_the_resamples_beyond_zero() -> None:
    differences = np.array([0.1] * 95 + [0.0, -0.1, -0.2, -0.3])
    assert bootstrap_p(differences) == bootstrap_p(-differences) == pytest.approx(2 * 5 / 100)
    assert bootstrap_p(np.full(99, 0.2)) == pytest.approx(2 / 100)
    assert bootstrap_p(np.zeros(99)) == 1


def test_resamples_are_counts_of_the_rows() -> None:
    (counts,) = resample_counts(7, num_resamples=500, seed=1)
    assert counts.shape == (500, 7)
    assert (counts.sum(axis=1) == 7).all()
    values = np.arange(14.0).reshape(7, 2)
    expected = counts @ values / 7
    assert np.array_equal(resampled_means(values, num_resamples=500, seed=1), expected)


@pytest.mark.parametrize("wrong", [0.5, "a", ["a"], [[0.5]]])
def test_holm_asks_for_a_list_of_numbers(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"p_values: .* is not valid: give a list of numbers, one for each test"):
        holm(wrong)
