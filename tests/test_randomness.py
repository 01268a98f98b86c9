"""Random numbers as a function of a sample's position, and their distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from vit.randomness import SampleRandom

MANY = 20_000


def streams(count: int = MANY, seed: int = 0, epoch: int = 0) -> SampleRandom:
    return SampleRandom.at(seed, epoch, torch.arange(count))


def correlation(a: Tensor, b: Tensor) -> float:
    return float(np.corrcoef(a.flatten().numpy(), b.flatten().numpy())[0, 1])


def test_the_hash_is_splitmix64() -> None:
    """First numbers of SplitMix64 from state 0 and from 1234567 (Vigna's splitmix64.c)."""
    from vit.randomness import _scramble

    first = _scramble(torch.tensor([0, 1234567]))
    assert [int(bits) % 2**64 for bits in first] == [0xE220A8397B1DCDAF, 6457827717110365317]


def test_uniform_is_uniform() -> None:
    numbers = streams().uniform().double().numpy()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert stats.kstest(numbers, "uniform").pvalue > 1e-3
    within = streams(1).uniform(MANY).double().numpy()[0]
    assert stats.kstest(within, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (streams().uniform(), streams(seed=1).uniform()),
        (streams().uniform(), streams(epoch=1).uniform()),
        (streams(epoch=1).uniform(), streams(seed=1).uniform()),
        (streams().uniform(), streams().fork("a").uniform()),
        (streams().fork("a").uniform(), streams().fork("b").uniform()),
        (streams().fork(0).uniform(), streams().fork(1).uniform()),
        (streams().fork("a").fork("b").uniform(), streams().fork("b").fork("a").uniform()),
        (streams().uniform(2)[:, 0], streams().uniform(2)[:, 1]),
        (streams().uniform()[:-1], streams().uniform()[1:]),
    ],
    ids=["seeds", "epochs", "seed for epoch", "fork", "names", "numbers", "order of forks", "draws", "neighbours"],
)
def test_streams_are_independent(one: Tensor, other: Tensor) -> None:
    assert abs(correlation(one, other)) < 4 / MANY**0.5
    assert not torch.equal(one, other)


def test_the_same_position_gives_the_same_numbers() -> None:
    assert torch.equal(streams(7).fork("a").uniform(3), streams(7).fork("a").uniform(3))


@given(st.permutations(list(range(12))), st.integers(1, 11))
def test_division_and_order_change_nothing(positions: list[int], cut: int) -> None:
    whole = streams(12).fork("a").uniform(2, 3)
    order = torch.tensor(positions)
    parts = [SampleRandom.at(0, 0, part).fork("a").uniform(2, 3) for part in (order[:cut], order[cut:])]
    assert torch.equal(torch.cat(parts), whole[order])


def test_more_draws_extend_the_fewer() -> None:
    assert torch.equal(streams(3).uniform(5)[:, :2], streams(3).uniform(2))


def test_shapes_and_an_empty_batch() -> None:
    random = streams(3)
    assert random.uniform().shape == (3,)
    assert random.uniform(2, 5).shape == (3, 2, 5)
    assert random.integers(4, 2).dtype == torch.int64
    assert random.normal(2).dtype == torch.float32
    assert random.beta(0.2, 2).shape == (3, 2)


def test_integers_are_even_and_below_the_bound() -> None:
    counts = torch.bincount(streams().integers(7), minlength=7)
    assert counts.shape == (7,)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_normal_is_normal() -> None:
    numbers = streams().normal().double().numpy()
    assert np.isfinite(numbers).all()
    assert stats.kstest(numbers, "norm").pvalue > 1e-3


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 3.0])
def test_beta_is_beta(alpha: float) -> None:
    numbers = streams().beta(alpha).double().numpy()
    assert ((numbers >= 0) & (numbers <= 1)).all()
    assert abs(numbers.mean() - 0.5) < 0.015
    assert abs(numbers.var() - 1 / (4 * (2 * alpha + 1))) < 0.01
    levels = np.linspace(0.1, 0.9, 9)
    np.testing.assert_allclose(np.quantile(numbers, levels), stats.beta(alpha, alpha).ppf(levels), atol=0.02)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_keep_drops_at_its_rate(rate: float) -> None:
    kept = streams(200).keep(rate, 101, 5)
    assert kept.shape == (200, 101, 5)
    share = 1 - kept.double().mean().item()
    assert abs(share - rate) < 5 * (rate * (1 - rate) / kept.numel()) ** 0.5 + 2**-16
    lanes = kept[:, :, 0].double().mean(dim=1)
    assert rate == 0 or lanes.std() > 0, "samples differ"


def test_keeps_four_draws_of_a_hash_are_independent() -> None:
    kept = streams(1).keep(0.5, 4 * MANY)[0].view(-1, 4).double()
    correlation = torch.corrcoef(kept.T) - torch.eye(4)
    assert correlation.abs().max() < 5 / MANY**0.5


def test_more_draws_of_keep_extend_the_fewer() -> None:
    assert torch.equal(streams(3).keep(0.3, 9)[:, :6], streams(3).keep(0.3, 6))


def test_words_are_uniform_and_depend_on_the_counter_alone() -> None:
    stream = SampleRandom.at(3, 1, torch.zeros(20000, dtype=torch.int64))
    places = torch.arange(20000)
    words = stream.words_at(places)
    assert (words.shape, words.dtype) == ((20000, 4), torch.int64)
    assert 0 <= int(words.min()) < 100
    assert 65436 < int(words.max()) < 65536
    assert torch.allclose(words.double().mean(dim=0), torch.tensor(32767.5, dtype=torch.float64), atol=400)
    assert torch.equal(SampleRandom(stream.state[7:9]).words_at(places[7:9]), words[7:9])
    assert float(torch.corrcoef(words.T.double()).fill_diagonal_(0).abs().max()) < 0.03


def test_a_rate_near_one_drops_nearly_everything() -> None:
    random = SampleRandom.at(0, 0, torch.arange(4))
    for rate in (0.99999, 0.999995, 0.9999999):
        assert random.keep(rate, 50_000).float().mean() < 1e-3


def test_no_numbers_have_their_shape() -> None:
    random = SampleRandom.at(0, 0, torch.arange(2))
    assert random.uniform(0).shape == (2, 0)
    assert random.keep(0.5, 0, 3).shape == (2, 0, 3)
