from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from tests.data.image_folders import make_folder, picture, truncate
from vit.config import DataConfig
from vit.data.images import BrokenImage, fingerprint, open_test, open_training
from vit.data.sources import TorchvisionSource


def pixels_of(split: Any) -> np.ndarray:
    return np.stack([np.asarray(split.source.read(int(index))) for index in split.indices])


def test_digits_keep_their_17_levels_exactly() -> None:
    data = load_digits()
    originals = [tuple(image.ravel()) for image in data.images.astype(int)]
    label_of = dict(zip(originals, data.target.tolist(), strict=True))
    train, val = open_training(DataConfig())
    test = open_test(DataConfig())
    assert len(train) + len(val) + len(test) == 1797
    for split in (train, val, test):
        images = pixels_of(split)
        assert images.shape[1:] == (8, 8, 3)
        levels = np.round(images[..., 0] / 255 * 16).astype(int)
        found = [label_of[tuple(image.ravel())] for image in levels]
        assert found == split.labels.tolist()
    assert images.max() == 255


def test_the_digits_pixels_never_change() -> None:
    digest = hashlib.sha256()
    for split in (*open_training(DataConfig()), open_test(DataConfig())):
        digest.update(pixels_of(split).tobytes())
    assert digest.hexdigest()[:12] == "ed2eacfaac07"


def test_digits_test_set_is_a_stratified_fifth_that_no_seed_moves() -> None:
    total = np.bincount(load_digits().target)
    test = open_test(DataConfig(split_seed=5))
    np.testing.assert_allclose(torch.bincount(test.labels), total / 5, atol=0.51)
    assert fingerprint(test) == fingerprint(open_test(DataConfig())) == "e23698e7c3cc"
    names = {test.source.name(index) for index in range(len(test))}
    train, _ = open_training(DataConfig())
    assert not names & {train.source.name(index) for index in range(len(train.source))}


def test_fake_images_are_the_same_everywhere_and_their_class_shows() -> None:
    config = DataConfig(name="fake", fake_images=400, fake_classes=10)
    train, test = open_training(config)[0], open_test(config)
    assert (len(train), len(test)) == (360, 100)
    images, unseen = pixels_of(train).reshape(360, -1), pixels_of(test).reshape(100, -1)
    np.testing.assert_array_equal(pixels_of(open_training(config)[0]).reshape(360, -1), images)
    assert images.shape[1] == 32 * 32 * 3
    assert len(np.unique(np.concatenate([images, unseen]), axis=0)) == 460
    assert KNeighborsClassifier(5).fit(images, train.labels).score(unseen, test.labels) > 0.9
    assert len(train.source.class_names) == 10


@pytest.mark.parametrize("name", ["digits", "fake"])
def test_sources_can_be_sent_to_a_worker(name: str) -> None:
    source = open_training(DataConfig(name=name))[0].source
    copy = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(np.asarray(copy.read(3)), np.asarray(source.read(3)))


def test_unknown_names_come_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"data\.name: 'cifar' .* did you mean 'cifar10"):
        open_training(DataConfig(name="cifar"))
    with pytest.raises(ValueError, match=r"data\.name: torchvision has no data set 'FashionMnist': did you mean 'Fash"):
        open_training(DataConfig(name="torchvision:FashionMnist"))
    with pytest.raises(ValueError, match=r"data\.name: torchvision has no data set 'mnist': did you mean 'MNIST"):
        open_training(DataConfig(name="torchvision:mnist"))
    with pytest.raises(ValueError, match=r"data\.name: 'torchvision:Kinetics' is not valid: it needs frames_per_clip"):
        open_training(DataConfig(name="torchvision:Kinetics"))


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "imagenette", "torchvision:MNIST", "torchvision:SVHN"])
def test_a_missing_set_says_in_one_line_where_it_looked_and_how_to_get_it(tmp_path: Path, name: str) -> None:
    for opens in (open_training, open_test):
        with pytest.raises(ValueError, match=r"^data\.root: .* is not in '.*nowhere'.*--data\.download true") as caught:
            opens(DataConfig(name=name, root=str(tmp_path / "nowhere")))
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "nowhere").exists()


def test_a_set_without_splits(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.name: 'torchvision:EuroSAT' .*imagefolder"):
        open_training(DataConfig(name="torchvision:EuroSAT", root=str(tmp_path)))


def write_mnist(folder: Path, part: str, images: np.ndarray, labels: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    head = np.array([2051, *images.shape], ">i4").tobytes()
    (folder / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
    head = np.array([2049, len(labels)], ">i4").tobytes()
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def test_a_torchvision_set_with_train_or_not(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    labels = np.arange(20, dtype=np.uint8) % 10
    write_mnist(tmp_path / "MNIST" / "raw", "train", images, labels)
    write_mnist(tmp_path / "MNIST" / "raw", "t10k", images[:7], labels[:7])
    config = DataConfig(name="torchvision:MNIST", root=str(tmp_path))
    train, val = open_training(config)
    assert len(train) == len(val) == 10
    assert train.source.class_names[3] == "3 - three"
    np.testing.assert_array_equal(np.asarray(train.source.read(4))[:, :, 1], images[4])
    assert open_test(config).labels.tolist() == list(range(7))
    assert open_test(config).source.name(2) == "MNIST/test/2"


def test_imagenette_reads_its_published_val_as_the_test_set(tmp_path: Path) -> None:
    make_folder(tmp_path / "imagenette2-320" / "train", {"n01440764": 3, "n02102040": 4}, suffix="JPEG")
    make_folder(tmp_path / "imagenette2-320" / "val", {"n01440764": 2, "n02102040": 1}, suffix="JPEG")
    config = DataConfig(name="imagenette", root=str(tmp_path), download=True)
    train, val = open_training(config)
    assert train.source.class_names == ["tench", "English springer"]
    assert len(train) + len(val) == 7
    assert open_test(config).labels.tolist() == [0, 0, 1]


def test_a_broken_image_of_a_torchvision_set(tmp_path: Path) -> None:
    make_folder(tmp_path / "imagenette2-320" / "train", {"n01440764": 3, "n02102040": 4}, suffix="JPEG")
    truncate(tmp_path / "imagenette2-320" / "train" / "n01440764" / "001.JPEG")
    source = open_training(DataConfig(name="imagenette", root=str(tmp_path)))[0].source
    with pytest.raises(BrokenImage, match="Imagenette/train/1"):
        source.read(1)


class Pictures:
    """A data set like torchvision's, with labels only in its samples."""

    labels_given = (0, 1, 1, 0, 1)

    def __init__(self, root: str, split: str = "trainval") -> None:
        if split not in ("trainval", "test"):
            raise ValueError(f"Unknown value '{split}' for argument split.")
        self.root, self.split = root, split

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return picture((6, 5), index).convert("L"), self.labels_given[index]


def test_labels_from_the_samples_and_a_split_called_trainval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision.datasets, "Pictures", Pictures, raising=False)
    train, _ = open_training(DataConfig(name="torchvision:Pictures"))
    assert train.source.labels.tolist() == [0, 1, 1, 0, 1]
    assert train.source.class_names == ["0", "1"]
    assert train.source.read(0).mode == "RGB"
    test = open_test(DataConfig(name="torchvision:Pictures"))
    for split, name in ((train, "trainval"), (test, "test")):
        assert isinstance(split.source, TorchvisionSource)
        assert split.source.dataset.split == name


@pytest.mark.parametrize("labels", [(0.5,) * 5, ("a",) * 5, ([0, 1],) * 5, (-1,) * 5])
def test_a_set_without_class_labels(monkeypatch: pytest.MonkeyPatch, labels: tuple[Any, ...]) -> None:
    monkeypatch.setattr(torchvision.datasets, "Pictures", Pictures, raising=False)
    monkeypatch.setattr(Pictures, "labels_given", labels)
    with pytest.raises(ValueError, match=r"data\.name: 'torchvision:Pictures' .*\(image, class number\)"):
        open_training(DataConfig(name="torchvision:Pictures"))


def test_a_label_beyond_the_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision.datasets, "Pictures", Pictures, raising=False)
    monkeypatch.setattr(Pictures, "classes", ["cat", "dog"], raising=False)
    monkeypatch.setattr(Pictures, "labels_given", (0, 1, 7, 0, 1))
    with pytest.raises(ValueError, match=r"data\.name: 'torchvision:Pictures' .* label 7, and it names 2 classes"):
        open_training(DataConfig(name="torchvision:Pictures"))


def test_download_happens_only_when_asked_and_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Remote(Pictures):
        def __init__(self, root: str, split: str = "trainval", download: bool = False) -> None:
            super().__init__(root, split)
            calls.append(download)
            if not any(calls):
                raise RuntimeError("Dataset not found.\nUse download=True")

    monkeypatch.setattr(torchvision.datasets, "Remote", Remote, raising=False)
    with pytest.raises(ValueError, match=r"--data\.download true"):
        open_test(DataConfig(name="torchvision:Remote"))
    open_test(DataConfig(name="torchvision:Remote", download=True))
    assert calls == [False, False, True]
    open_test(DataConfig(name="torchvision:Remote", download=True))
    assert calls == [False, False, True, False]


def test_a_failed_download_is_not_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Offline(Pictures):
        def __init__(self, root: str, split: str = "trainval", download: bool = False) -> None:
            super().__init__(root, split)
            raise ConnectionError("no network") if download else RuntimeError("Dataset not found.")

    monkeypatch.setattr(torchvision.datasets, "Offline", Offline, raising=False)
    with pytest.raises(OSError, match=r"data\.download: torchvision:Offline could not be fetched: no network"):
        open_test(DataConfig(name="torchvision:Offline", download=True))
