"""Batches augmented together equal each alone, bit for bit, and their number is limited."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.data.image_folders import make_folder, truncate
from tests.data.test_loading import digits
from vit.config import AugmentConfig, DataConfig, Preprocessing
from vit.data import augmented
from vit.data.augment import Augment
from vit.data.augmented import AugmentedBatch, AugmentingLoader
from vit.data.file_source import FileSource
from vit.data.images import open_training
from vit.data.loading import Step, TrainLoader

EVERYTHING = AugmentConfig(
    crop="random_resized",
    flip=True,
    policy="randaugment",
    color_jitter=0.3,
    erasing_probability=0.5,
    mixup_alpha=0.8,
    cutmix_alpha=1.0,
    mix_group=4,
)


def counted(loader: AugmentingLoader) -> Counted:
    assert isinstance(loader.augment, Counted)
    return loader.augment


class Counted(Augment):
    """Records the number of images of each call."""

    calls: list[int]

    def __call__(self, batch: Any, **place: int) -> Any:
        self.calls.append(len(batch.labels))
        return super().__call__(batch, **place)


def loader_of(count: int, config: AugmentConfig = EVERYTHING, **place: int) -> AugmentingLoader:
    data, device = DataConfig(batch_size=24), torch.device("cpu")
    loader = TrainLoader(digits(count), data, config, image_size=(8, 8), seed=7, device=device, **place)
    augment = Counted(config, Preprocessing(image_size=(8, 8)), 10)
    augment.calls = []
    return AugmentingLoader(loader, augment, seed=7)


def on_cpu(steps: list[Step]) -> list[list[AugmentedBatch]]:
    return [[batch.augmented("cpu") for batch in step.batches] for step in steps]


def alone(loader: AugmentingLoader, start_step: int = 0) -> list[list[AugmentedBatch]]:
    return [
        [loader.augment_together([batch], "cpu", epoch=3)[0] for batch in step.batches]
        for step in loader.loader.epoch(3, start_step)
    ]


def assert_same(ours: list[list[AugmentedBatch]], theirs: list[list[AugmentedBatch]]) -> None:
    assert [len(batches) for batches in ours] == [len(batches) for batches in theirs]
    for one, other in zip(chain(*ours), chain(*theirs), strict=True):
        for name, tensor in vars(one).items():
            assert torch.equal(tensor, vars(other)[name]), name


CALLS: list[tuple[dict[str, int], dict[int, int]]] = [
    ({}, {1: 5, 24: 5, 30: 5, 48: 3, 72: 2, 512: 1}),
    ({"accumulation_steps": 3}, {1: 15, 24: 7, 48: 5, 512: 3}),
    ({"accumulation_steps": 2, "rank": 1, "world_size": 3}, {1: 10, 8: 6, 512: 2}),
]
"""How a step is divided → most images → calls. 97 images: the last of five steps has one, and its other micro-batches
are stand-ins for one image, which no two join.
"""


@pytest.mark.parametrize(("place", "calls"), CALLS)
def test_batches_augmented_together_equal_each_alone(place: dict[str, Any], calls: dict[int, int]) -> None:
    loader = loader_of(97, **place)
    for most, expected in calls.items():
        loader.max_images_together = most
        counted(loader).calls = []
        together = on_cpu(list(loader.epoch(3)))
        assert len(counted(loader).calls) == expected, most
        assert max(counted(loader).calls) <= max(most, 24)
        assert_same(together, alone(loader))
        assert_same(on_cpu(list(loader.epoch(3, 2))), alone(loader, 2))


@pytest.mark.parametrize("settings", [{"repeats": 3}, {"first_image_size": 4, "growing_epochs": 4}])
def test_repeats_and_growing_images(settings: dict[str, Any]) -> None:
    loader = loader_of(97, replace(EVERYTHING, **settings))
    assert_same(on_cpu(list(loader.epoch(3))), alone(loader))


def test_broken_images(tmp_path: Path) -> None:
    """Their weight of 0 keeps them from being mixed into others."""
    make_folder(tmp_path / "train", {"a": 24, "b": 24}, size=(8, 8))
    make_folder(tmp_path / "val", {"a": 3, "b": 3}, size=(8, 8))
    data = DataConfig(name="imagefolder", root=str(tmp_path), batch_size=8, on_broken_image="skip", workers=0)
    split, _ = open_training(data)
    assert isinstance(split.source, FileSource)
    truncate(split.source.root / split.source.files[int(split.indices[11])])
    loader = TrainLoader(split, data, EVERYTHING, image_size=(8, 8), seed=7, device=torch.device("cpu"))
    augmented = AugmentingLoader(loader, Augment(EVERYTHING, Preprocessing(image_size=(8, 8)), 2), seed=7)
    together = on_cpu(list(augmented.epoch(3)))
    assert sum(int((batch.weights == 0).sum()) for batch in chain(*together)) == 1
    assert_same(together, alone(augmented))


def test_a_step_is_read_only_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that fills a group does not wait for the next, and nothing is augmented before it is requested."""
    loader, read = loader_of(97), []
    own = loader.loader.epoch
    monkeypatch.setattr(loader.loader, "epoch", lambda *a: (read.append(1) or step for step in own(*a)))
    for most, ahead in ((1, 1), (24, 1), (48, 2), (71, 2), (72, 3)):
        loader.max_images_together = most
        read.clear()
        next(loader.epoch(0))
        assert len(read) == loader.steps_together == ahead
    assert counted(loader).calls == []


@pytest.fixture
def three_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("three_threads")
def test_batches_that_workers_have_ready_are_not_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more micro-batches are read at once than workers have ready, and one thread fewer is used per worker."""
    monkeypatch.setattr(TrainLoader, "busy_workers", 1)
    loader, seen = loader_of(97), []
    own = loader.augment.__call__
    monkeypatch.setattr(Counted, "__call__", lambda _, *a, **k: (seen.append(torch.get_num_threads()), own(*a, **k))[1])
    on_cpu(list(loader.epoch(0)))
    assert counted(loader).calls == [48, 48, 1]
    assert seen == [2, 2, 2]
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("side", [8, 4])
def test_large_images_are_not_augmented_together(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large before or after."""
    monkeypatch.setitem(augmented._MAX_VALUES, "cpu", 24 * 3 * 8 * 8 + 1)
    loader = loader_of(97)
    monkeypatch.setattr(loader.augment, "image_size", lambda _: (side, side))
    on_cpu(list(loader.epoch(0)))
    assert counted(loader).calls == [24, 24, 24, 24, 1]


def test_a_returned_batch_is_not_kept() -> None:
    loader = loader_of(97, accumulation_steps=3)
    (step, *_) = loader.epoch(0)
    first = step.batches[0].augmented("cpu")
    gone = weakref.ref(first.images)
    again = step.batches[0].augmented("cpu").images
    assert torch.equal(again, first.images)
    del first
    assert gone() is None


def test_an_unaugmented_batch_has_its_indices() -> None:
    loader = loader_of(48)
    for step, other in zip(loader.epoch(0), loader.loader.epoch(0), strict=True):
        assert torch.equal(step.batches[0].indices, other.batches[0].indices)
        assert (step.num_samples, step.normalizer) == (other.num_samples, other.normalizer)
    assert (loader.steps_per_epoch, loader.samples_per_epoch) == (2, 48)
