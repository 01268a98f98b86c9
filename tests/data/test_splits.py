from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vit.config import DataConfig
from vit.data.sources import ArraySource
from vit.data.splits import Split, fingerprint, split_validation, stratified


def source_of(labels: list[int]) -> ArraySource:
    num_classes = max(labels) + 1
    return ArraySource(
        pixels=np.zeros((len(labels), 4, 4), np.uint8),
        labels=torch.tensor(labels),
        class_names=[f"class {label}" for label in range(num_classes)],
        names=[f"image {index}" for index in range(len(labels))],
    )


LABELS = [0] * 100 + [1] * 50 + [2] * 7 + [3] * 2
SHUFFLED = torch.tensor(LABELS)[torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(0))].tolist()


def test_stratified_takes_the_fraction_of_every_class() -> None:
    labels = torch.tensor(SHUFFLED)
    chosen = stratified(labels, 0.2, seed=0, stream="test")
    assert torch.bincount(labels[chosen]).tolist() == [20, 10, 1, 1]


def test_stratified_is_not_the_first_ones_and_moves_with_seed_and_stream() -> None:
    labels = torch.zeros(1000, dtype=torch.int64)
    parts = [stratified(labels, 0.5, seed=seed, stream=stream) for seed in (0, 1) for stream in ("a", "b")]
    for index, part in enumerate(parts):
        assert 200 < int(part[:500].sum()) < 300
        assert all(200 < int((part & other).sum()) < 300 for other in parts[:index])


def test_validation_and_training_are_disjoint_complete_and_balanced() -> None:
    source = source_of(SHUFFLED)
    train, val = split_validation(source, DataConfig(val_fraction=0.1))
    assert sorted(train.indices.tolist() + val.indices.tolist()) == list(range(len(SHUFFLED)))
    assert torch.bincount(val.labels).tolist() == [10, 5, 1, 1]
    assert torch.bincount(train.labels).tolist() == [90, 45, 6, 1]


def test_split_seed_and_val_fraction_change_the_split() -> None:
    source = source_of(SHUFFLED)
    vals = [
        tuple(split_validation(source, DataConfig(val_fraction=fraction, split_seed=seed))[1].indices.tolist())
        for fraction in (0.1, 0.3)
        for seed in (0, 1)
    ]
    assert len(set(vals)) == 4
    assert len(vals[2]) > 2 * len(vals[0])


def test_every_class_keeps_a_training_image() -> None:
    train, val = split_validation(source_of(SHUFFLED), DataConfig(val_fraction=0.99))
    assert torch.bincount(train.labels).tolist() == [1, 1, 1, 1]
    assert len(train) + len(val) == len(SHUFFLED)


@settings(max_examples=50, deadline=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=0, max_size=60),
    fractions=st.lists(st.floats(0.001, 1), min_size=2, max_size=4).map(sorted),
    seed=st.integers(0, 5),
)
def test_subsets_are_nested_and_balanced_and_leave_validation_alone(
    labels: list[Any], fractions: list[float], seed: int
) -> None:
    source = source_of([*labels, *[0, 1, 2, 3] * 2])
    whole, whole_val = split_validation(source, DataConfig())
    counts = torch.bincount(whole.labels)
    inside: set[int] = set()
    for fraction in fractions:
        train, val = split_validation(source, DataConfig(fraction=fraction, subset_seed=seed if fraction < 1 else 0))
        assert torch.equal(val.indices, whole_val.indices)
        assert inside <= set(train.indices.tolist()) <= set(whole.indices.tolist())
        inside = set(train.indices.tolist())
        expected = torch.bincount(train.labels, minlength=4)
        assert ((expected - counts * fraction).abs() <= 1).all()
        assert int(expected.min()) >= 1


def test_subset_seed_draws_the_subset_and_leaves_validation_alone() -> None:
    cuts = [split_validation(source_of(SHUFFLED), DataConfig(fraction=0.5, subset_seed=seed)) for seed in (0, 1)]
    (subset, val), (other_subset, other_val) = cuts
    assert torch.equal(val.indices, other_val.indices)
    assert set(subset.indices.tolist()) != set(other_subset.indices.tolist())
    assert torch.bincount(subset.labels).tolist() == torch.bincount(other_subset.labels).tolist()


def test_an_epoch_of_a_subset_can_be_as_long_as_the_whole_sets() -> None:
    source = source_of(SHUFFLED)
    whole, _ = split_validation(source, DataConfig())
    assert whole.epoch_length is None
    train, val = split_validation(source, DataConfig(fraction=0.1, epoch_length="whole_set"))
    assert (train.epoch_length, val.epoch_length) == (len(whole), None)


def test_a_class_of_one_image_is_named() -> None:
    with pytest.raises(ValueError, match=r"data\.root: class 'class 1' has 1 training images"):
        split_validation(source_of([0, 0, 0, 1]), DataConfig())


def test_fingerprint_depends_on_indices_labels_and_names() -> None:
    source = source_of([0, 0, 1, 1])
    base = Split(source, torch.tensor([0, 2]))
    assert len(fingerprint(base)) == 12
    assert fingerprint(base) == fingerprint(Split(source_of([0, 0, 1, 1]), torch.tensor([0, 2])))
    others = [
        Split(source, torch.tensor([1, 2])),
        Split(source_of([0, 0, 0, 1]), torch.tensor([0, 2])),
        Split(replace(source, names=["a", "b", "c", "d"]), torch.tensor([0, 2])),
        Split(replace(source, class_names=["a", "b"]), torch.tensor([0, 2])),
    ]
    assert len({fingerprint(split) for split in [base, *others]}) == 5
