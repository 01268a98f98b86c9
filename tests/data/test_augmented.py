"""Batches that are augmented together are what each is alone, bit for bit, and not too many are."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch

from tests.data.test_loading import digits
from vit.config import AugmentConfig, DataConfig, Preprocessing
from vit.data import augmented
from vit.data.augment import Augment
from vit.data.augmented import AugmentedBatch, AugmentedLoader
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


class Counted(Augment):
    """Remembers how many images each call got."""

    calls: list[int]

    def __call__(self, batch: Any, **place: int) -> Any:
        self.calls.append(len(batch.labels))
        return super().__call__(batch, **place)


def loader_of(count: int, **place: int) -> AugmentedLoader:
    loader = TrainLoader(digits(count), DataConfig(batch_size=24), EVERYTHING, image_size=(8, 8), seed=7, **place)
    augment = Counted(EVERYTHING, Preprocessing(image_size=(8, 8)), 10)
    augment.calls = []
    return AugmentedLoader(loader, augment, seed=7)


def on_cpu(steps: list[Step]) -> list[list[AugmentedBatch]]:
    return [[batch.to("cpu") for batch in step.batches] for step in steps]


def alone(loader: AugmentedLoader, start_step: int = 0) -> list[list[AugmentedBatch]]:
    return [
        [loader.augmented([batch], 3, "cpu")[0] for batch in step.batches]
        for step in loader.loader.epoch(3, start_step)
    ]


def assert_same(ours: list[list[AugmentedBatch]], theirs: list[list[AugmentedBatch]]) -> None:
    assert [len(batches) for batches in ours] == [len(batches) for batches in theirs]
    for one, other in zip(chain(*ours), chain(*theirs), strict=True):
        for name, tensor in vars(one).items():
            assert torch.equal(tensor, vars(other)[name]), name


PLACES: list[dict[str, int]] = [
    {},
    {"accumulation_steps": 3},
    {"accumulation_steps": 6},
    {"accumulation_steps": 2, "rank": 1, "world_size": 3},
]


@pytest.mark.parametrize(("most", "calls"), [(1, 5), (24, 5), (30, 5), (48, 3), (72, 2), (512, 1)])
@pytest.mark.parametrize("place", PLACES)
def test_together_they_are_what_each_is_alone(
    most: int, calls: int, place: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One image in the last step of five: the others of its micro-batches are stand-ins."""
    monkeypatch.setattr(augmented, "_IMAGES", most)
    loader = loader_of(97, **place)
    together = on_cpu(list(loader.epoch(3)))
    assert max(loader.augment.calls) <= max(most, 24)
    assert len(loader.augment.calls) == calls or place
    assert_same(together, alone(loader))
    assert_same(on_cpu(list(loader.epoch(3, 2))), alone(loader, 2))


def test_a_step_is_read_when_its_turn_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fills a group is not held back for the next, and nothing is augmented before it is asked for."""
    loader, read = loader_of(97), []
    own = loader.loader.epoch
    monkeypatch.setattr(loader.loader, "epoch", lambda *a: (read.append(1) or step for step in own(*a)))
    for most, ahead in ((24, 1), (48, 2), (71, 2), (72, 3)):
        monkeypatch.setattr(augmented, "_IMAGES", most)
        read.clear()
        next(loader.epoch(0))
        assert len(read) == ahead
    assert loader.augment.calls == []


def test_large_images_are_not_augmented_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augmented, "_VALUES", 24 * 3 * 8 * 8 + 1)
    loader = loader_of(97)
    on_cpu(list(loader.epoch(0)))
    assert loader.augment.calls == [24, 24, 24, 24, 1]


def test_a_batch_on_its_way_knows_its_images() -> None:
    loader = loader_of(48)
    for step, other in zip(loader.epoch(0), loader.loader.epoch(0), strict=True):
        assert torch.equal(step.batches[0].indices, other.batches[0].indices)
        assert (step.num_samples, step.normalizer) == (other.num_samples, other.normalizer)
    assert (loader.steps_per_epoch, loader.samples_per_epoch) == (2, 48)
