from __future__ import annotations

import logging
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vit.data.loading import Step
from vit.data.order import epoch_order
from vit.tasks.translation.config import TextDataConfig
from vit.tasks.translation.loading import (
    EncodedSplit,
    TextBatch,
    TextEvalLoader,
    TextTrainLoader,
    bucketed_order,
    encode_sources,
    pad,
)
from vit.tasks.translation.text import TextSplit, open_training
from vit.tasks.translation.vocabulary import BOS, EOS, PAD, Vocabularies, Vocabulary

FIELDS = ("source", "source_lengths", "target", "target_lengths", "positions", "indices", "weights")


@cache
def copying(count: int) -> EncodedSplit:
    config = TextDataConfig(name="copying", copying_sentences=300, copying_lengths=(1, 17))
    text, _ = open_training(config)
    half = [" ".join(line.split()[::2]) for line in text.targets]  # sides of different lengths
    text = TextSplit(text.sources[:count], half[:count], {"train": count})
    return EncodedSplit.encode(text, Vocabularies.train(text, config))


def loader_of(
    count: int, *, batch_size: int = 24, pool: int = 3, max_length: int = 100, **settings: Any
) -> TextTrainLoader:
    config = TextDataConfig(batch_size=batch_size, pool=pool, max_length=max_length)
    return TextTrainLoader(copying(count), config, seed=7, **settings)


def sentences(batches: list[TextBatch]) -> dict[int, tuple[Any, ...]]:
    """Position → index, source and target without padding; stand-ins are left out."""
    found = {}
    for batch in batches:
        for row in torch.nonzero(batch.weights).flatten().tolist():
            source = batch.source[row, : batch.source_lengths[row]].tolist()
            target = batch.target[row, : batch.target_lengths[row]].tolist()
            assert int(batch.positions[row]) not in found
            found[int(batch.positions[row])] = (int(batch.indices[row]), source, target)
    return found


def assert_same(steps: list[Step], others: list[Step]) -> None:
    for step, other in zip(steps, others, strict=True):
        assert (step.num_samples, step.normalizer) == (other.num_samples, other.normalizer)
        for one, two in zip(step.batches, other.batches, strict=True):
            assert all(torch.equal(getattr(one, name), getattr(two, name)) for name in FIELDS)


def test_a_batch_worked_by_hand() -> None:
    """Words of the vocabulary: a 4, b 5, c 6."""
    text = TextSplit(["a b c", ""], ["b", "c a"], {"train": 2})
    vocabulary = Vocabulary.of_words(text.sources)
    split = EncodedSplit.encode(text, Vocabularies(vocabulary, vocabulary))
    (step,) = TextTrainLoader(split, TextDataConfig(batch_size=2, pool=1), seed=0).epoch(0)
    (batch,) = step.batches
    rows = batch.indices.argsort()
    assert batch.source[rows].tolist() == [[4, 5, 6, EOS], [EOS, PAD, PAD, PAD]]
    assert batch.source_lengths[rows].tolist() == [4, 1]
    assert batch.target[rows].tolist() == [[BOS, 5, EOS, PAD], [BOS, 6, 4, EOS]]
    assert batch.target_lengths[rows].tolist() == [3, 4]
    assert batch.weights.tolist() == [1, 1]
    assert batch.positions.tolist() == [0, 1]
    assert (step.num_samples, step.normalizer) == (2, 2 + 3)
    assert [getattr(batch, name).dtype for name in FIELDS] == [torch.int64] * 6 + [torch.float32]


def test_sources_for_translating() -> None:
    vocabulary = Vocabulary.of_words(["a b"])
    tokens, lengths = pad(encode_sources(vocabulary, ["b", "", "a b"]))
    assert tokens.tolist() == [[5, EOS, PAD], [EOS, PAD, PAD], [4, 5, EOS]]
    assert lengths.tolist() == [2, 1, 3]


def test_an_epoch_holds_every_pair_once_with_its_own_tokens() -> None:
    loader = loader_of(101)
    steps = list(loader.epoch(0))
    assert len(steps) == loader.steps_per_epoch == 5
    assert [step.num_samples for step in steps] == [24] * 4 + [5]
    found = sentences([batch for step in steps for batch in step.batches])
    assert sorted(found) == list(range(101))
    split = copying(101)
    assert sorted(index for index, *_ in found.values()) == list(range(101)) == split.indices.tolist()
    assert loader.samples_per_epoch == 101
    for index, source, target in found.values():
        assert source == split.sources[index].tolist()
        assert target == split.targets[index].tolist()
        assert (source[-1], target[0], target[-1]) == (EOS, BOS, EOS)


def test_epochs_and_seeds_differ() -> None:
    orders = [bucketed_order(seed, epoch, lengths_of(101), batch_size=8, pool=3) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order.tolist()) for order in orders}) == 4
    firsts = {tuple(next(loader_of(101).epoch(epoch)).batches[0].indices.tolist()) for epoch in range(3)}
    assert len(firsts) == 3


def lengths_of(count: int) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(count).integers(1, 30, size=(count, 2)))


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 200), batch_size=st.integers(1, 19), pool=st.integers(1, 7))
def test_the_order_against_a_loop(count: int, batch_size: int, pool: int) -> None:
    """Pools of the random order, each sorted and cut; every batch of the result is one of those."""
    lengths = lengths_of(count)
    order = bucketed_order(3, 2, lengths, batch_size=batch_size, pool=pool).tolist()
    assert sorted(order) == list(range(count))
    random = epoch_order(3, 2, count).tolist()
    num_whole = count // batch_size * batch_size

    def size(index: int) -> tuple[int, int]:
        return int(lengths[index].max()), int(lengths[index].sum())

    expected = []
    for start in range(0, num_whole, batch_size * pool):
        in_pool = sorted(random[start : min(start + batch_size * pool, num_whole)], key=size)
        expected += [in_pool[place : place + batch_size] for place in range(0, len(in_pool), batch_size)]
    found = [order[place : place + batch_size] for place in range(0, num_whole, batch_size)]
    assert sorted(found) == sorted(expected)
    assert order[num_whole:] == sorted(random[num_whole:], key=size)


def test_batches_are_shuffled_over_the_whole_epoch() -> None:
    lengths = lengths_of(4000)
    order = bucketed_order(0, 0, lengths, batch_size=8, pool=500)
    means = lengths[order].double().amax(dim=1).reshape(-1, 8).mean(dim=1)
    neighbours = torch.corrcoef(torch.stack([means[:-1], means[1:]]))[0, 1]
    assert abs(float(neighbours)) < 0.15  # 500 batches: three standard deviations
    assert float(means.std()) > 5


def padding(pool: int) -> float:
    batches = [batch for step in loader_of(300, pool=pool).epoch(0) for batch in step.batches]
    held = sum(batch.source.numel() + batch.target.numel() for batch in batches)
    real = sum(int(batch.source_lengths.sum() + batch.target_lengths.sum()) for batch in batches)
    return 1 - real / held


def test_larger_pools_pad_less() -> None:
    parts = [padding(pool) for pool in (1, 3, 12)]
    assert parts == sorted(parts, reverse=True)
    assert parts[2] < 0.5 * parts[0]


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(20, 130),
    division=st.sampled_from([(1, 1), (4, 1), (1, 2), (2, 3), (1, 3), (3, 2), (6, 1), (1, 4)]),
    pool=st.integers(1, 5),
)
def test_any_division_of_a_step_holds_what_the_undivided_step_holds(
    count: int, division: tuple[int, int], pool: int
) -> None:
    accumulation_steps, world_size = division
    whole = list(loader_of(count, pool=pool).epoch(2))
    place = {"accumulation_steps": accumulation_steps, "world_size": world_size}
    parts = [list(loader_of(count, pool=pool, rank=rank, **place).epoch(2)) for rank in range(world_size)]
    for index, step in enumerate(whole):
        shares = [part[index] for part in parts]
        assert {(share.num_samples, share.normalizer) for share in shares} == {(step.num_samples, step.normalizer)}
        batches = [batch for share in shares for batch in share.batches]
        assert len(batches) == accumulation_steps * world_size
        assert all(len(batch.indices) for batch in batches)
        expected = sentences(step.batches)
        assert sentences(batches) == expected
        assert len(expected) == step.num_samples
        predicted = sum(((batch.target_lengths - 1) * batch.weights).sum().item() for batch in batches)
        assert predicted == step.normalizer == sum(len(target) - 1 for *_, target in expected.values())
    assert all(len(part) == len(whole) for part in parts)


def test_a_process_without_pairs_gets_a_stand_in_of_weight_0() -> None:
    steps = [list(loader_of(25, rank=rank, world_size=4).epoch(0))[-1] for rank in range(4)]
    assert sorted(step.batches[0].weights.tolist() for step in steps) == [[0.0], [0.0], [0.0], [1.0]]
    assert {step.num_samples for step in steps} == {1}
    assert len({step.normalizer for step in steps}) == 1


@pytest.mark.parametrize("start_step", [0, 1, 3, 4, 5])
def test_an_epoch_goes_on_where_it_stopped(start_step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(loader_of(101).epoch(1))
    made = []
    real = EncodedSplit.batch
    monkeypatch.setattr(EncodedSplit, "batch", lambda *a, **k: made.append(1) or real(*a, **k))
    assert_same(list(loader_of(101).epoch(1, start_step)), whole[start_step:])
    assert len(made) == 5 - start_step


def test_pairs_with_a_longer_side_are_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        loader = loader_of(101, max_length=6)
    split = copying(101)
    fits = [
        i for i in range(101) if len(split.text.sources[i].split()) <= 6 and len(split.text.targets[i].split()) <= 6
    ]
    found = sentences([batch for step in loader.epoch(0) for batch in step.batches])
    assert sorted(index for index, *_ in found.values()) == fits
    assert (loader.num_left_out, loader.samples_per_epoch) == (101 - len(fits), len(fits))
    assert 0 < len(fits) < 101
    assert caplog.messages == [f"{101 - len(fits)} of 101 training pairs are left out: data.max_length is 6"]
    assert loader_of(101).num_left_out == 0


def test_the_target_may_be_the_longer_side() -> None:
    text = TextSplit(["a", "a b"], ["a a a", "b"], {"train": 2})
    vocabulary = Vocabulary.of_words(text.sources)
    split = EncodedSplit.encode(text, Vocabularies(vocabulary, vocabulary))
    loader = TextTrainLoader(split, TextDataConfig(batch_size=1, max_length=2), seed=0)
    assert [step.batches[0].indices.tolist() for step in loader.epoch(0)] == [[1]]


def test_a_limit_that_leaves_nothing_is_refused() -> None:
    text = TextSplit(["a b c"], ["a b"], {"train": 1})
    vocabulary = Vocabulary.of_words(text.sources)
    split = EncodedSplit.encode(text, Vocabularies(vocabulary, vocabulary))
    with pytest.raises(ValueError, match=r"data\.max_length: 2 is not valid: .* all 1 .*the shortest has 3 tokens"):
        TextTrainLoader(split, TextDataConfig(max_length=2), seed=0)


def test_a_batch_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.batch_size: 24 .* are 20 or 25"):
        loader_of(101, world_size=5)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_evaluation_sees_every_pair_of_a_prime_number_once(world_size: int) -> None:
    split = copying(101)
    config = TextDataConfig(eval_batch_size=10)
    loaders = [TextEvalLoader(split, config, rank=rank, world_size=world_size) for rank in range(world_size)]
    for _ in range(2):
        parts = [list(loader) for loader in loaders]
        assert [len(part) for part in parts] == [len(loader) for loader in loaders]
        batches = [batch for part in parts for batch in part]
        assert max(len(batch.indices) for batch in batches) == 10
        found = sentences(batches)
        assert sorted(found) == list(range(101))
        for place, (index, source, target) in found.items():
            assert place == index
            assert source == split.sources[index].tolist()
            assert target == split.targets[index].tolist()
    lengths = torch.cat([batch.source_lengths for batch in parts[0]]).tolist()
    assert lengths == sorted(lengths, reverse=True)


def test_more_processes_than_sentences() -> None:
    loaders = [TextEvalLoader(copying(2), TextDataConfig(), rank=rank, world_size=3) for rank in range(3)]
    assert [len(loader) for loader in loaders] == [1, 1, 0]
    assert [sum(len(batch.indices) for batch in loader) for loader in loaders] == [1, 1, 0]


def test_long_sentences_are_not_left_out_of_evaluation() -> None:
    loader = TextEvalLoader(copying(101), TextDataConfig(max_length=3))
    assert sum(len(batch.indices) for batch in loader) == 101


def test_a_batch_of_long_sentences_has_no_more_tokens_than_one_of_usual_ones() -> None:
    split, config = copying(101), TextDataConfig(max_length=3, eval_batch_size=10)
    batches = list(TextEvalLoader(split, config))
    padded = [max(batch.source.numel(), batch.target.numel()) for batch in batches]
    assert max(padded) <= 10 * (3 + 2)
    assert max(len(batch.indices) for batch in batches) == 10, "short ones are together as before"
    alone = TextEvalLoader(split, TextDataConfig(max_length=1, eval_batch_size=1))
    assert [len(batch.indices) for batch in alone] == [1] * 101


def test_to_moves_every_tensor() -> None:
    batch = next(loader_of(30).epoch(0)).batches[0].to("meta")
    assert {getattr(batch, name).device.type for name in FIELDS} == {"meta"}
