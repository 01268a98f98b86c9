from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vit.data.order import StepPlan, epoch_order


def test_the_order_is_a_permutation_of_its_own_seed_and_epoch() -> None:
    orders = [epoch_order(seed, epoch, 97) for seed in range(3) for epoch in range(3)]
    assert all(sorted(order.tolist()) == list(range(97)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 9
    assert torch.equal(epoch_order(1, 2, 97), epoch_order(1, 2, 97))


def test_the_order_never_changes() -> None:
    assert epoch_order(0, 0, 7).tolist() == [3, 5, 2, 4, 1, 0, 6]


def test_the_order_is_well_mixed() -> None:
    order = torch.stack([epoch_order(seed, 0, 1000) for seed in range(50)]).double()
    assert (order.mean(0) - 499.5).abs().mean() < 60  # std of a mean of 50: 41
    correlation = torch.corrcoef(torch.stack([order[:, :-1].flatten(), order[:, 1:].flatten()]))[0, 1]
    assert abs(correlation) < 0.02


@settings(max_examples=25, deadline=None)
@given(num_images=st.integers(1, 50), length=st.integers(1, 150), num_epochs=st.integers(1, 4))
def test_epochs_of_another_length_are_endless_shuffled_passes(num_images: int, length: int, num_epochs: int) -> None:
    stream = torch.cat([epoch_order(3, epoch, num_images, length=length) for epoch in range(num_epochs)])
    assert len(stream) == num_epochs * length
    for number, a_pass in enumerate(stream.split(num_images)):
        assert a_pass.tolist() == epoch_order(3, number, num_images)[: len(a_pass)].tolist()


@settings(max_examples=60, deadline=None)
@given(num_images=st.integers(1, 500), repeats=st.integers(2, 5))
def test_repeats(num_images: int, repeats: int) -> None:
    order = epoch_order(3, 1, num_images, repeats)
    assert len(order) == num_images
    counts = torch.bincount(order, minlength=num_images)
    assert int(counts.max()) <= repeats
    chosen = epoch_order(3, 1, num_images)[: -(-num_images // repeats)]
    assert set(order.tolist()) == set(chosen.tolist())


def test_repeats_fill_a_longer_epoch() -> None:
    order = epoch_order(3, 1, num_images=10, repeats=3, length=25)
    chosen = epoch_order(3, 1, num_images=10, length=25)[:9]
    assert len(order) == 25
    assert (torch.bincount(order, minlength=10) <= 3 * torch.bincount(chosen, minlength=10)).all()


def test_copies_are_near_but_in_different_mixing_groups() -> None:
    order = epoch_order(0, 0, 3 * 32 * 5, 3)
    assert (torch.bincount(order)[order] == 3).all()
    for image in order.unique().tolist():
        places = torch.nonzero(order == image).flatten()
        assert len(set((places // 8).tolist())) == 3
        assert int(places[-1] - places[0]) < 96


@settings(max_examples=200, deadline=None)
@given(
    group=st.integers(1, 9),
    groups_a_chunk=st.integers(1, 4),
    num_chunks=st.integers(1, 6),
    num_images=st.integers(1, 300),
)
def test_chunks_cover_a_step_once_and_never_split_a_group(
    group: int, groups_a_chunk: int, num_chunks: int, num_images: int
) -> None:
    plan = StepPlan(num_images, group * groups_a_chunk * num_chunks, num_chunks, group)
    seen: list[int] = []
    for step in range(plan.num_steps):
        chunks = [plan.chunk(step, chunk) for chunk in range(num_chunks)]
        assert [position for chunk in chunks for position in chunk] == list(plan.positions(step))
        assert all(chunk.start % group == 0 for chunk in chunks if chunk)
        lengths = [-(-len(chunk) // group) for chunk in chunks]
        assert max(lengths) - min(lengths) <= 1
        seen += plan.positions(step)
    assert seen == list(range(num_images))


@pytest.mark.parametrize(("num_images", "lengths"), [(129, [64, 65]), (128, [64, 64]), (130, [64, 64, 2]), (1, [1])])
def test_a_last_step_of_too_few_images_joins_the_one_before(num_images: int, lengths: list[int]) -> None:
    plan = StepPlan(num_images, 64, num_chunks=1, group=1, fewest=2)
    assert [len(plan.positions(step)) for step in range(plan.num_steps)] == lengths


def test_too_few_images_for_every_chunk_join_the_step_before() -> None:
    plan = StepPlan(64 + 7, 64, num_chunks=4, group=1, fewest=2)
    assert [len(plan.chunk(0, chunk)) for chunk in range(4)] == [17, 18, 18, 18]
    assert StepPlan(64 + 8, 64, num_chunks=4, group=1, fewest=2).num_steps == 2


def test_a_last_step_of_too_few_images_joins_the_one_before_however_it_is_cut() -> None:
    for num_chunks in (1, 2, 4):
        plans = [StepPlan(64 + left, 64, num_chunks=num_chunks, group=1, fewest_in_step=2) for left in (0, 1, 2)]
        assert [plan.num_steps for plan in plans] == [1, 1, 2]


def test_full_steps_have_equal_chunks() -> None:
    plan = StepPlan(1000, 96, 6, 8)
    assert [len(plan.chunk(2, chunk)) for chunk in range(6)] == [16] * 6


def test_a_batch_that_cannot_be_divided_names_the_nearest_that_can() -> None:
    with pytest.raises(ValueError, match=r"data\.batch_size: 100 .* 3 equal micro-batches .* are 99 or 102"):
        StepPlan(1000, 100, 3, 1)
    with pytest.raises(ValueError, match=r"augment\.mix_group \(8\).*96 or 112"):
        StepPlan(1000, 100, 2, 8)
    with pytest.raises(ValueError, match=r"do are 16$"):
        StepPlan(1000, 8, 2, 8)
