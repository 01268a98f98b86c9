"""Features are computed once: what is stored is read, what is missing is computed, and killing changes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.data.image_folders import make_folder, truncate
from tests.evaluation.test_frozen_features import opened
from vit.config import DataConfig, ViTConfig
from vit.data.images import open_test
from vit.engine import make_accelerator
from vit.evaluation import feature_store
from vit.evaluation.feature_store import FeatureStore, complete
from vit.evaluation.frozen_features import feature_reader
from vit.hub import OpenedModel
from vit.models import build_model

DATA = DataConfig(name="fake", fake_images=152, fake_classes=3, workers=0, eval_batch_size=4)


@pytest.fixture
def model() -> OpenedModel:
    torch.manual_seed(0)
    config = ViTConfig(image_size=(8, 8), patch_size=(4, 4), num_classes=3, width=24, depth=1, num_heads=3)
    return opened(build_model(config), (8, 8))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of every batch that was computed; shards have eight images."""
    sizes: list[int] = []
    reader = feature_reader

    def recording(*args: Any) -> Any:
        read = reader(*args)

        def counted(pixels: Tensor) -> dict[str, Tensor]:
            sizes.append(len(pixels))
            return read(pixels)

        return counted

    monkeypatch.setattr(feature_store, "feature_reader", recording)
    monkeypatch.setattr(feature_store, "_SHARD_IMAGES", 9)
    return sizes


def fill(model: OpenedModel, folder: Path, *kinds: str, data: DataConfig = DATA) -> FeatureStore:
    accelerator = make_accelerator("cpu", "fp32")
    store = FeatureStore.of(model, open_test(data), data, folder, accelerator)
    complete(store, model, kinds, data, accelerator, "test")
    return store


def test_all_images_in_shards_of_whole_batches(model: OpenedModel, tmp_path: Path, computed: list[int]) -> None:
    store = fill(model, tmp_path, "head", "class")
    assert computed == [4] * 9 + [2]
    names = sorted(path.name for path in store.folder.glob("head-*"))
    assert names == [f"head-{shard:05d}.safetensors" for shard in range(5)]
    indices, features = store.read("head")
    assert indices.tolist() == list(range(38))
    assert features.shape == (38, 24)
    assert features.dtype == torch.float32
    assert store.images_per_second("head") > 0


def test_a_missing_shard_alone_is_computed_again_and_is_the_same(
    model: OpenedModel, tmp_path: Path, computed: list[int]
) -> None:
    store = fill(model, tmp_path, "head")
    before = store.read("head")
    for shard in (1, 4):
        store.path("head", shard).unlink()
    computed.clear()
    again = fill(model, tmp_path, "head")
    assert computed == [4, 4, 4, 2]
    for one, other in zip(before, again.read("head"), strict=True):
        assert torch.equal(one, other)
    computed.clear()
    fill(model, tmp_path, "head")
    assert computed == []


def test_a_shard_without_a_readable_image_is_not_read_again(
    model: OpenedModel, tmp_path: Path, computed: list[int]
) -> None:
    images = make_folder(tmp_path / "images" / "train", {"cat": 3, "dog": 3}).parent
    make_folder(images / "test", {"cat": 8, "dog": 5})
    for number in range(5):
        truncate(images / "test" / "dog" / f"{number:03d}.png")
    options: dict[str, Any] = {"root": str(images), "on_broken_image": "skip", "workers": 0, "eval_batch_size": 4}
    data = DataConfig(name="imagefolder", **options)
    before = fill(model, tmp_path / "store", "head", data=data)
    assert computed == [4, 4]
    assert before.read("head")[0].tolist() == list(range(8))
    fill(model, tmp_path / "store", "head", data=data)
    assert computed == [4, 4]
    before.path("head", 1).unlink()  # an earlier call was stopped before this shard
    fill(model, tmp_path / "store", "head", data=data)
    assert computed == [4, 4]
    for shard in range(2):
        before.path("head", shard).unlink()
    for number in range(8):
        truncate(images / "test" / "cat" / f"{number:03d}.png")
    with pytest.raises(ValueError, match="none of the 13 images can be decoded"):
        complete(before, model, ["head"], data, make_accelerator("cpu", "fp32"), "test")


def test_an_image_that_was_left_out_is_not_forgotten(model: OpenedModel, tmp_path: Path) -> None:
    images = make_folder(tmp_path / "images" / "train", {"cat": 3, "dog": 3}).parent
    make_folder(images / "test", {"cat": 3, "dog": 2})
    truncate(images / "test" / "cat" / "001.png")
    data = DataConfig(name="imagefolder", root=str(images), on_broken_image="skip", workers=0, eval_batch_size=4)
    fill(model, tmp_path / "store", "head", data=data)
    with pytest.raises(ValueError, match=r"'fail' is not valid: .*001.png could not be read earlier"):
        fill(model, tmp_path / "store", "head", data=replace(data, on_broken_image="fail"))


def test_another_kind_is_computed_beside_the_stored(model: OpenedModel, tmp_path: Path, computed: list[int]) -> None:
    written = fill(model, tmp_path, "head").path("head", 0).stat().st_mtime_ns
    store = fill(model, tmp_path, "head", "patches")
    assert store.path("head", 0).stat().st_mtime_ns == written
    assert len(store.read("patches")[0]) == 38
    assert sum(computed) == 76


def test_what_features_depend_on_is_kept_apart(model: OpenedModel, tmp_path: Path, computed: list[int]) -> None:
    changed = torch.nn.Linear(1, 1)
    others = (
        (replace(model, stated_preprocessing=replace(model.preprocessing, crop_fraction=0.9)), DATA),
        (replace(model, model=changed), DATA),
        (model, replace(DATA, eval_batch_size=5)),
        (model, replace(DATA, fake_images=156)),
    )
    accelerator = make_accelerator("cpu", "fp32")
    first = FeatureStore.of(model, open_test(DATA), DATA, tmp_path, accelerator).folder
    for other, data in others:
        assert FeatureStore.of(other, open_test(data), data, tmp_path, accelerator).folder != first
    assert FeatureStore.of(model, open_test(DATA), DATA, tmp_path, make_accelerator("cpu", "bf16")).folder != first
    assert not computed


def command(folder: Path) -> list[str]:
    words = "eval timm:test_vit --random_weights --transfer --data digits --data.workers 0 --data.eval_batch_size 32"
    options = ["--train_images", "600", "--images", "100", "--device", "cpu", "--output_dir", str(folder)]
    return [sys.executable, "-m", "vit.cli", *words.split(), *options, "--features", "head", "patches"]


@pytest.mark.slow
def test_a_killed_command_continues_and_the_result_is_the_same(tmp_path: Path) -> None:
    whole = subprocess.run(command(tmp_path / "whole"), capture_output=True, check=True, text=True)
    process = subprocess.Popen(
        command(tmp_path / "killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ)
    )
    deadline = time.monotonic() + 300
    while not list((tmp_path / "killed").rglob("patches-00000.safetensors")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed").rglob("*-0*.safetensors")}
    assert not list((tmp_path / "killed").rglob("*linear_probe*"))
    again = subprocess.run(command(tmp_path / "killed"), capture_output=True, check=True, text=True)
    assert all(path.stat().st_mtime_ns == changed for path, changed in left.items())
    results = [without_speed(each.stdout) for each in (whole, again)]
    assert results[0] == results[1]
    assert '"linear_probe"' in results[0]


def without_speed(printed: str) -> str:
    return "\n".join(line for line in printed.splitlines() if "images_per_second" not in line)
