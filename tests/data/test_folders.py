from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.image_folders import make_folder, picture
from vit.config import DataConfig
from vit.data.images import open_test, open_training


def config_for(root: Path, **settings: Any) -> DataConfig:
    return DataConfig(name="imagefolder", root=str(root), **settings)


def test_labels_names_and_pixels(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {"cat": 4, "ant": 3})
    make_folder(tmp_path / "val", {"ant": 2, "cat": 1})
    train, val = open_training(config_for(tmp_path))
    source = train.source
    assert source.class_names == ["ant", "cat"]
    assert source.labels.tolist() == [0] * 3 + [1] * 4
    assert source.name(3) == "train/cat/000.png"
    np.testing.assert_array_equal(np.asarray(source.read(4)), np.asarray(picture((12, 12), 1)))
    assert len(train) + len(val) == 7
    test = open_test(config_for(tmp_path))
    assert test.labels.tolist() == [0, 0, 1]
    names = [test.source.name(index) for index in range(3)]
    assert names == ["val/ant/000.png", "val/ant/001.png", "val/cat/000.png"]


def test_nested_folders_and_other_files(tmp_path: Path) -> None:
    make_folder(tmp_path / "train" / "a", {"images": 3})
    make_folder(tmp_path / "train" / "b", {"images": 2, "more": 1}, suffix="JPEG")
    make_folder(tmp_path / "val", {"a": 1, "b": 1})
    (tmp_path / "train" / "a" / "boxes.txt").write_text("0 0 1 1")
    (tmp_path / "train" / "a" / "._000.png").write_text("")
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "train" / "README.txt").write_text("")
    train, val = open_training(config_for(tmp_path))
    assert train.source.class_names == ["a", "b"]
    assert train.source.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert len(train) + len(val) == 6


def test_which_folder_is_the_test_set(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {"a": 2, "b": 2})
    make_folder(tmp_path / "test", {"a": 1, "b": 1})
    assert open_test(config_for(tmp_path)).source.name(0).startswith("test/")
    make_folder(tmp_path / "val", {"a": 1, "b": 1})
    assert open_test(config_for(tmp_path)).source.name(0).startswith("test/")
    assert open_test(config_for(tmp_path, test_folder="val")).source.name(0).startswith("val/")
    make_folder(tmp_path / "hard", {"a": 1, "b": 1})
    assert open_test(config_for(tmp_path, test_folder="hard")).source.name(0).startswith("hard/")


def test_training_opens_without_and_with_an_unreadable_test_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path / "train", {"a": 2, "b": 2})
    named = config_for(tmp_path, test_folder="val")
    assert len(open_training(named)[0]) == 2
    with pytest.raises(ValueError, match=r"data\.test_folder: no test images: there is no folder '.*val'"):
        open_test(named)
    make_folder(tmp_path / "val", {"other": 1})
    readable = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "val" not in str(path) and readable(path, mode))
    assert len(open_training(config_for(tmp_path))[0]) == 2


def test_training_reads_no_test_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path / "train", {"a": 2, "b": 2})
    make_folder(tmp_path / "val", {"a": 1, "b": 1})
    scanned = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scanned.append(str(path)) or scandir(path))
    open_training(config_for(tmp_path))
    assert str(tmp_path / "train" / "a") in scanned
    assert {path for path in scanned if "val" in path.removeprefix(str(tmp_path))} == {str(tmp_path / "val")}


def test_the_test_set_opens_without_the_training_set(tmp_path: Path) -> None:
    make_folder(tmp_path / "val", {"a": 1, "b": 1})
    assert open_test(config_for(tmp_path)).source.class_names == ["a", "b"]


def test_a_flat_folder(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {"a": 2})
    picture((8, 8), 0).save(tmp_path / "train" / "stray.jpg")
    with pytest.raises(ValueError, match=r"data\.root: '.*stray\.jpg' is directly in train/.*<class>/stray\.jpg"):
        open_training(config_for(tmp_path))


def test_an_empty_class(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {"a": 2, "empty": 0})
    with pytest.raises(ValueError, match=r"data\.root: class .*empty' holds no images \(.*\.jpg.*remove it"):
        open_training(config_for(tmp_path))


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path / "train", {"cat": 3, "dog": 3})
    make_folder(tmp_path / "test", {"cat": 3, "dog": 3})
    scan = os.scandir

    def fail(path: Any) -> Any:
        if str(path).endswith("dog"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(PermissionError, match="dog"):
        open_training(DataConfig(name="imagefolder", root=str(tmp_path)))


def test_a_class_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {"cat": 3})
    make_folder(tmp_path / "train" / os.fsdecode(b"caf\xe9"), {"": 3})
    with pytest.raises(ValueError, match=r"class folder 'caf\\udce9' is not valid UTF-8; rename it"):
        open_training(DataConfig(name="imagefolder", root=str(tmp_path)))


@pytest.mark.parametrize("opens", [open_training, open_test])
def test_different_class_lists(tmp_path: Path, opens: Callable[..., Any]) -> None:
    make_folder(tmp_path / "train", {"a": 2, "b": 2, "c": 2})
    make_folder(tmp_path / "val", {"b": 1, "c": 1, "d": 1})
    with pytest.raises(ValueError, match=r"'.*train' and '.*val' differ: only in train/: 'a' .*only in val/: 'd'"):
        opens(config_for(tmp_path))


def test_a_missing_train_folder_and_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.root: there is no folder '.*/data'; if its images were moved, give"):
        open_training(config_for(tmp_path / "data"))
    make_folder(tmp_path / "data" / "tiny" / "train", {"a": 2})
    with pytest.raises(ValueError, match=r"did you mean --data\.root .*/data/tiny\?"):
        open_training(config_for(tmp_path / "data"))
    shutil.rmtree(tmp_path / "data" / "tiny" / "train" / "a")
    with pytest.raises(ValueError, match="holds no class folders"):
        open_training(config_for(tmp_path / "data" / "tiny"))


def test_every_error_is_one_line(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {f"class {number}": 2 for number in range(9)})
    make_folder(tmp_path / "val", {"d": 1})
    with pytest.raises(ValueError, match=r"… \(9\)") as caught:
        open_training(config_for(tmp_path))
    assert "\n" not in str(caught.value)


def test_tiny_imagenet_as_stanford_publishes_it(tmp_path: Path) -> None:
    make_folder(tmp_path / "train" / "n01", {"images": 2})
    make_folder(tmp_path / "train" / "n02", {"images": 2})
    make_folder(tmp_path / "val", {"images": 3})
    table = ["000.png\tn02\t0\t0\t9\t9", "001.png\tn01\t0\t0\t9\t9", "002.png\tn02\t0\t0\t9\t9", ""]
    (tmp_path / "val" / "val_annotations.txt").write_text("\n".join(table))
    open_training(config_for(tmp_path))
    test = open_test(config_for(tmp_path))
    assert test.labels.tolist() == [1, 0, 1]
    assert torch.equal(test.indices, torch.arange(3))
    assert test.source.read(2).size == (12, 12)
    (tmp_path / "val" / "val_annotations.txt").write_text("000.png\tn09\t0")
    with pytest.raises(ValueError, match="n09"):
        open_test(config_for(tmp_path))
    (tmp_path / "train").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"data\.root: val_annotations\.txt needs the class folders of train/"):
        open_test(config_for(tmp_path))
