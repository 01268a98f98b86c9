from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.image_folders import make_folder, truncate
from vit.config import AugmentConfig, DataConfig, Preprocessing
from vit.data import loading
from vit.data.images import Split, open_test, open_training
from vit.data.loading import EvalLoader, Step, TrainBatch, TrainLoader, cache_device
from vit.data.preprocessing import resize_and_crop

FIELDS = ("images", "labels", "positions", "indices", "weights", "aspects")
PLAIN = AugmentConfig()
CPU = torch.device("cpu")
MIXED = AugmentConfig(mixup_alpha=0.8, mix_group=4)


@cache
def digits(count: int) -> Split:
    train, _ = open_training(DataConfig())
    return Split(train.source, train.indices[:count])


def loader_of(count: int, augment: AugmentConfig = PLAIN, **settings: Any) -> TrainLoader:
    config = DataConfig(batch_size=settings.pop("batch_size", 24), cache_gib=settings.pop("cache_gib", 2.0))
    return TrainLoader(digits(count), config, augment, image_size=(8, 8), seed=7, **{"device": CPU, **settings})


def joined(batches: list[TrainBatch]) -> dict[str, torch.Tensor]:
    """The batches as one, without placeholders, by position."""
    columns = {name: torch.cat([getattr(batch, name) for batch in batches]) for name in FIELDS}
    kept = torch.nonzero(columns["weights"] > 0).flatten()
    order = kept[columns["positions"][kept].argsort()]
    return {name: column[order] for name, column in columns.items()}


def assert_same_steps(steps: list[Step], others: list[Step]) -> None:
    for step, other in zip(steps, others, strict=True):
        assert step.num_samples == other.num_samples
        for one, two in zip(step.batches, other.batches, strict=True):
            assert all(torch.equal(getattr(one, name), getattr(two, name)) for name in FIELDS)


def test_an_epoch_has_every_image_once_with_its_label_and_pixels() -> None:
    loader = loader_of(101)
    steps = list(loader.epoch(0))
    assert len(steps) == loader.steps_per_epoch == 5
    assert [step.num_samples for step in steps] == [24] * 4 + [5]
    batch = joined([batch for step in steps for batch in step.batches])
    split = digits(101)
    assert sorted(batch["indices"].tolist()) == split.indices.tolist()
    assert batch["positions"].tolist() == list(range(101))
    assert torch.equal(batch["labels"], split.source.labels[batch["indices"]])
    for index, image in list(zip(batch["indices"].tolist(), batch["images"], strict=True))[::7]:
        expected = resize_and_crop(split.source.read(index), Preprocessing(image_size=(8, 8)))
        assert torch.equal(image, expected)
    dtypes = [batch[name].dtype for name in FIELDS]
    assert dtypes == [torch.uint8, torch.int64, torch.int64, torch.int64, torch.float32, torch.float32]


def test_epochs_and_seeds_differ() -> None:
    firsts = {tuple(next(loader_of(101).epoch(epoch)).batches[0].indices.tolist()) for epoch in range(3)}
    assert len(firsts) == 3


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(20, 130),
    division=st.sampled_from([(1, 1), (4, 1), (1, 2), (2, 3), (1, 3), (3, 2), (6, 1)]),
    augment=st.sampled_from([PLAIN, MIXED, AugmentConfig(repeats=3), replace(MIXED, repeats=2)]),
)
def test_any_division_of_a_step_has_the_same_content(
    count: int, division: tuple[int, int], augment: AugmentConfig
) -> None:
    accumulation_steps, world_size = division
    whole = list(loader_of(count, augment, batch_size=48).epoch(2))
    parts = [
        list(
            loader_of(
                count,
                augment,
                batch_size=48,
                accumulation_steps=accumulation_steps,
                rank=rank,
                world_size=world_size,
            ).epoch(2)
        )
        for rank in range(world_size)
    ]
    group = augment.mix_group if augment.mixes else 1
    for index, step in enumerate(whole):
        shares = [part[index] for part in parts]
        assert {share.num_samples for share in shares} == {step.num_samples}
        batches = [batch for share in shares for batch in share.batches]
        assert len(batches) == accumulation_steps * world_size
        assert all(len(batch.labels) for batch in batches)
        expected, found = joined(step.batches), joined(batches)
        assert len(found["positions"]) == step.num_samples
        assert all(torch.equal(expected[name], found[name]) for name in FIELDS)
        groups = [set((batch.positions[batch.weights > 0] // group).tolist()) for batch in batches]
        assert sum(map(len, groups)) == len(set.union(*groups))
    assert all(len(part) == len(whole) for part in parts)


def test_a_process_without_images_gets_a_placeholder_of_weight_0() -> None:
    steps = [list(loader_of(25, rank=rank, world_size=4).epoch(0)) for rank in range(4)]
    weights = [step[-1].batches[0].weights.tolist() for step in steps]
    assert sorted(weights) == [[0.0], [0.0], [0.0], [1.0]]
    assert {step[-1].num_samples for step in steps} == {1}


@pytest.mark.parametrize("start_step", [0, 1, 3, 4, 5])
def test_resuming_continues_the_epoch_exactly(start_step: int) -> None:
    settings: dict[str, Any] = {"accumulation_steps": 2, "rank": 1, "world_size": 2}
    whole = list(loader_of(101, **settings).epoch(3))
    assert_same_steps(list(loader_of(101, **settings).epoch(3, start_step)), whole[start_step:])


def test_a_batch_size_that_cannot_be_divided_is_the_users_error() -> None:
    with pytest.raises(ValueError, match=r"data\.batch_size: 24 .* 5 equal micro-batches.* 20 or 25"):
        loader_of(101, world_size=5)
    with pytest.raises(ValueError, match=r"data\.batch_size: 24 .*augment\.mix_group \(16\)"):
        loader_of(101, AugmentConfig(cutmix_alpha=1.0, mix_group=16))


def test_a_longer_epoch_repeats_images_in_full_steps() -> None:
    split = replace(digits(10), epoch_length=100)
    loader = TrainLoader(split, DataConfig(batch_size=16, workers=0), PLAIN, image_size=(8, 8), seed=3, device=CPU)
    assert (loader.steps_per_epoch, loader.samples_per_epoch) == (7, 100)
    steps = list(loader.epoch(1))
    assert [step.num_samples for step in steps] == [16] * 6 + [4]
    batch = joined([batch for step in steps for batch in step.batches])
    assert batch["positions"].tolist() == list(range(100))
    assert torch.unique(batch["indices"], return_counts=True)[1].tolist() == [10] * 10


def test_repeats_fill_an_epoch_of_the_same_length() -> None:
    loader = loader_of(100, AugmentConfig(repeats=3))
    assert loader.samples_per_epoch == 100
    batch = joined([batch for step in loader.epoch(0) for batch in step.batches])
    assert batch["positions"].tolist() == list(range(100))
    assert len(set(batch["indices"].tolist())) == 34


@pytest.fixture
def folder(tmp_path: Path) -> DataConfig:
    make_folder(tmp_path / "train", {"a": 14, "b": 13}, size=(20, 30))
    make_folder(tmp_path / "test", {"a": 6, "b": 5}, size=(30, 20))
    return DataConfig(name="imagefolder", root=str(tmp_path), batch_size=8, workers=0)


def folder_loader(config: DataConfig, **settings: Any) -> TrainLoader:
    return TrainLoader(open_training(config)[0], config, PLAIN, image_size=(14, 14), seed=0, device=CPU, **settings)


def test_streamed_and_cached_images_are_equal_with_and_without_workers(folder: DataConfig) -> None:
    kept = list(folder_loader(folder).epoch(1))
    assert kept[0].batches[0].images.shape == (8, 3, 16, 16)
    torch.testing.assert_close(kept[0].batches[0].aspects, torch.full((8,), 20 / 30))
    for workers in (0, 2):
        streamed = folder_loader(replace(folder, cache_gib=0, workers=workers))
        assert_same_steps(list(streamed.epoch(1)), kept)
        assert_same_steps(list(streamed.epoch(1, 2)), kept[2:])


@pytest.mark.parametrize("antialias", [False, True])
def test_training_images_are_smoothed_where_those_of_evaluation_are(folder: DataConfig, antialias: bool) -> None:
    loader = folder_loader(replace(folder, antialias=antialias, canvas_size=9))
    batch = next(loader.epoch(0)).batches[0]
    squashed = Preprocessing(image_size=(9, 9), crop_fraction=1.0, squash=True, antialias=antialias)
    expected = [resize_and_crop(loader.split.source.read(index), squashed) for index in batch.indices.tolist()]
    assert torch.equal(batch.images, torch.stack(expected))


@pytest.mark.parametrize(
    ("device", "num_bytes", "home"),
    [("cuda:1", 800, "cuda:1"), ("cuda:1", 801, "cpu"), ("cpu", 1, "cpu"), ("mps", 1, "cpu")],
)
def test_a_cuda_device_caches_up_to_a_tenth_of_its_memory(
    device: str, num_bytes: int, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=8_000))
    assert cache_device(num_bytes, torch.device(device)) == torch.device(home)


def test_cached_images_are_on_the_cache_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device represents a CUDA device."""
    asked = []
    monkeypatch.setattr(loading, "cache_device", lambda *found: asked.append(found) or torch.device("meta"))
    loader = loader_of(101, device=torch.device("meta"))
    assert loader.bytes_on_device() == 101 * 3 * 8 * 8
    assert asked == [(101 * 3 * 8 * 8, torch.device("meta"))]
    asked.clear()
    step = next(loader.epoch(0))
    assert asked == [(101 * 3 * 8 * 8, torch.device("meta"))]
    places = {name: getattr(step.batches[0], name).device.type for name in FIELDS}
    assert places == {name: "meta" if name in ("images", "aspects") else "cpu" for name in FIELDS}
    assert step.batches[0].images.shape == (24, 3, 8, 8)
    assert {tensor.device.type for tensor in vars(step.batches[0].to("meta")).values()} == {"meta"}


def test_images_that_take_no_device_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of a run on the CPU, streamed images, and images cached on the CPU."""
    there = torch.device("meta")
    monkeypatch.setattr(loading, "cache_device", lambda *_: there)
    assert loader_of(101).bytes_on_device() == 0
    assert loader_of(101, device=there, cache_gib=0).bytes_on_device() == 0
    monkeypatch.setattr(loading, "cache_device", lambda *_: CPU)
    assert loader_of(101, device=there).bytes_on_device() == 0


def test_steps_before_the_resumed_one_are_not_read(folder: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = folder_loader(replace(folder, cache_gib=0))
    read = []
    source = loader.split.source
    original = type(source).read
    list(loader.epoch(0))

    def recorded(self: Any, index: int, *, smallest: tuple[int, int] | None = None) -> Any:
        read.append(index)
        return original(self, index, smallest=smallest)

    monkeypatch.setattr(type(source), "read", recorded)
    resumed = list(loader.epoch(0, 2))
    assert sorted(read) == sorted(index for step in resumed for index in step.batches[0].indices.tolist())


def test_canvas_and_cache_settings_have_an_effect(folder: DataConfig) -> None:
    images = next(folder_loader(replace(folder, canvas_size=21)).epoch(0)).batches[0].images
    assert images.shape == (8, 3, 21, 21)
    other = next(folder_loader(replace(folder, interpolation="bilinear")).epoch(0)).batches[0].images
    assert not torch.equal(other, next(folder_loader(folder).epoch(0)).batches[0].images)
    kept, streamed = folder_loader(folder), folder_loader(replace(folder, cache_gib=1e-9))
    for loader in (kept, streamed):
        next(loader.epoch(0))
    assert kept._cache is not None
    assert streamed._cache is None


@pytest.fixture
def broken(folder: DataConfig) -> DataConfig:
    for name in ("train/a/003.png", "train/b/007.png", "test/a/002.png"):
        truncate(Path(folder.root) / name)
    return folder


@pytest.mark.parametrize("cache_gib", [0, 1])
def test_a_broken_image_stops_the_run_by_name(broken: DataConfig, cache_gib: int) -> None:
    with pytest.raises(ValueError, match=r"data\.on_broken_image: train/./00.\.png cannot be .*on_broken_image skip"):
        list(folder_loader(replace(broken, cache_gib=cache_gib)).epoch(0))
    with pytest.raises(ValueError, match=r"test/a/002\.png cannot be decoded"):
        list(EvalLoader(open_test(broken), broken.preprocessing((14, 14)), broken))


@pytest.mark.parametrize(("cache_gib", "workers"), [(0, 0), (0, 2), (1, 0)])
def test_a_skipped_image_is_named_once_and_has_weight_0(
    broken: DataConfig, cache_gib: int, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(broken, on_broken_image="skip", cache_gib=cache_gib, workers=workers, val_fraction=0.05)
    loader = folder_loader(config)
    split = loader.split
    bad = {i for i in split.indices.tolist() if split.source.name(i) in ("train/a/003.png", "train/b/007.png")}
    assert bad
    with caplog.at_level(logging.WARNING):
        steps = [step for epoch in range(2) for step in loader.epoch(epoch)]
    for step in steps:
        (batch,) = step.batches
        for index, weight, label in zip(batch.indices.tolist(), batch.weights, batch.labels, strict=True):
            assert weight == (0 if index in bad else 1)
            assert label == split.source.labels[index]
    assert sum(step.num_samples for step in steps) == 2 * len(split)
    assert loader.num_broken == len(bad)
    assert sorted(str(record.args[0]) for record in caplog.records if isinstance(record.args, tuple)) == sorted(
        split.source.name(i) for i in bad
    )


def test_evaluation_skips_and_counts_broken_images(broken: DataConfig, caplog: pytest.LogCaptureFixture) -> None:
    config = replace(broken, on_broken_image="skip", eval_batch_size=1)
    loader = EvalLoader(open_test(config), config.preprocessing((14, 14)), config)
    for _ in range(2):
        with caplog.at_level(logging.WARNING):
            batches = list(loader)
        assert [int(batch.indices) for batch in batches] == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10]
        assert (loader.num_broken, loader.num_total) == (1, 11)
        assert len(caplog.records) == 1


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("cache_gib", [0, 1])
def test_evaluation_has_every_image_once(world_size: int, cache_gib: int) -> None:
    split = digits(101)
    config = DataConfig(eval_batch_size=10, cache_gib=cache_gib)
    preprocessing = Preprocessing(image_size=(16, 12), crop_fraction=0.9)
    loaders = [EvalLoader(split, preprocessing, config, rank=rank, world_size=world_size) for rank in range(world_size)]
    for _ in range(2):
        parts = [list(loader) for loader in loaders]
        assert [len(part) for part in parts] == [len(loader) for loader in loaders]
        batches = [batch for part in parts for batch in part]
        indices = torch.cat([batch.indices for batch in batches])
        assert sorted(indices.tolist()) == split.indices.tolist()
        assert torch.equal(torch.cat([batch.labels for batch in batches]), split.source.labels[indices])
        images = torch.cat([batch.images for batch in batches])
        assert images.shape == (101, 3, 16, 12)
        expected = resize_and_crop(split.source.read(int(indices[50])), preprocessing)
        assert torch.equal(images[50], expected)
        assert {loader.num_total for loader in loaders} == {101}


def test_more_processes_than_images() -> None:
    config = DataConfig()
    loaders = [
        EvalLoader(digits(2), Preprocessing(image_size=(8, 8)), config, rank=rank, world_size=3) for rank in range(3)
    ]
    assert [len(loader) for loader in loaders] == [1, 1, 0]
    assert [sum(len(batch.labels) for batch in loader) for loader in loaders] == [1, 1, 0]


def test_evaluation_with_workers_gives_the_same_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.data.loading.MIN_IMAGES_FOR_WORKERS", 1)
    preprocessing = Preprocessing(image_size=(8, 8))
    batches = [
        list(EvalLoader(digits(40), preprocessing, DataConfig(eval_batch_size=16, workers=workers, cache_gib=0)))
        for workers in (0, 2)
    ]
    for one, two in zip(*batches, strict=True):
        assert torch.equal(one.images, two.images)
        assert torch.equal(one.indices, two.indices)


def test_to_moves_every_tensor() -> None:
    batch = next(loader_of(30).epoch(0)).batches[0].to("meta")
    assert {getattr(batch, name).device.type for name in FIELDS} == {"meta"}
