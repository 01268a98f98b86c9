"""Subsets of ImageNet's classes and ReaL labels, by hand; and against the lists that libraries ship."""

from pathlib import Path

import numpy as np
import pytest

from vit.evaluation.class_maps import (
    IMAGENETTE,
    imagenet_columns,
    read_real_labels,
    read_subset,
    real_accuracy,
    real_labels_of,
    wnids,
)
from vit.evaluation.metrics import classification_metrics
from vit.evaluation.predictions import Predictions

TINY = Path(__file__).parents[3] / "shared" / "data" / "tiny-imagenet-200-val.zip"


def answers(logits: np.ndarray, labels: list[int]) -> Predictions:
    count = len(labels)
    return Predictions(
        indices=np.arange(count),
        labels=np.array(labels),
        logits=logits.astype(np.float32),
        class_names=list(wnids()),
        num_total=count,
        num_broken=0,
    )


def test_the_thousand():
    assert len(wnids()) == 1000
    assert list(wnids()) == sorted(set(wnids()))
    assert (wnids()[0], wnids()[217], wnids()[701], wnids()[999]) == (
        "n01440764",
        "n02102040",
        "n03888257",
        "n15075141",
    )


def test_imagenettes_classes_are_torchvisions():
    from torchvision.datasets import Imagenette

    assert {wnid: names[0] for wnid, names in Imagenette._WNID_TO_CLASS.items()} == IMAGENETTE
    columns = [0, 217, 482, 491, 497, 566, 569, 571, 574, 701]
    assert imagenet_columns(list(IMAGENETTE)) == columns
    assert imagenet_columns(list(IMAGENETTE.values())) == columns
    assert imagenet_columns(["n03888257", "n01440764"]) == [701, 0]
    assert imagenet_columns(["n03888257", "cat"]) is None
    assert imagenet_columns([]) is None


@pytest.mark.skipif(not TINY.exists(), reason="shared/data is not here")
def test_tiny_imagenets_classes_are_all_there():
    import zipfile

    with zipfile.ZipFile(TINY) as archive:
        names = sorted({parts[2] for name in archive.namelist() if len(parts := name.split("/")) == 4 and parts[3]})
    columns = imagenet_columns(names)
    assert len(names) == 200
    assert columns is not None
    assert [wnids()[column] for column in columns] == names


def test_both_readings_by_hand():
    logits = np.zeros((3, 1000))
    logits[0, [701, 0, 5]] = 3, 1, 2  # right in both
    logits[1, [701, 0, 5]] = 1, 2, 3  # right among the two classes alone
    logits[2, [701, 0, 5]] = 3, 2, 1  # wrong in both
    readings = read_subset(answers(logits, [0, 1, 1]), ["n03888257", "n01440764"])
    assert readings.restricted.logits.tolist() == [[3, 1], [1, 2], [3, 2]]
    assert readings.restricted.labels.tolist() == [0, 1, 1]
    assert readings.unrestricted.labels.tolist() == [701, 0, 0]
    assert classification_metrics(readings.restricted)["top1"] == pytest.approx(2 / 3)
    assert classification_metrics(readings.unrestricted)["top1"] == pytest.approx(1 / 3)


def test_what_is_no_subset_is_refused():
    few = Predictions(
        indices=np.arange(1),
        labels=np.array([0]),
        logits=np.zeros((1, 2), np.float32),
        class_names=["a", "b"],
        num_total=1,
        num_broken=0,
    )
    with pytest.raises(ValueError, match=r"model.num_classes: 2 is not valid"):
        read_subset(few, ["n01440764"])
    with pytest.raises(ValueError, match=r"data.root: 'cat' is not valid: it is no class of ImageNet-1k"):
        read_subset(answers(np.zeros((1, 1000)), [0]), ["n01440764", "cat"])


def test_real_accuracy_leaves_out_images_without_labels():
    found = real_accuracy(np.array([3, 4, 5, 6]), [[1, 3], [], [4], [6]])
    assert (found.accuracy, found.num_judged, found.num_left_out) == (pytest.approx(2 / 3), 3, 1)
    with pytest.raises(ValueError, match="none of the images has a label"):
        real_accuracy(np.array([3]), [[]])


def test_real_labels_go_by_the_images_names():
    labels = [[number] for number in range(20)]
    names = ["val/n01440764/ILSVRC2012_val_00000007.JPEG", "ILSVRC2012_val_00000020_n01.JPEG"]
    assert real_labels_of(names, labels) == [[6], [19]]
    for name in ("val/7.JPEG", "ILSVRC2012_val_00000021.JPEG", "ILSVRC2012_val_00000000.JPEG"):
        with pytest.raises(ValueError, match=r"real_labels: .* is not valid: its name must hold"):
            real_labels_of([name], labels)


def test_the_file_of_real_labels():
    import timm

    labels = read_real_labels(Path(timm.__file__).parent / "data" / "_info" / "imagenet_real_labels.json")
    assert len(labels) == 50_000
    assert labels[1] == [970, 795]
    assert sum(not entry for entry in labels) == 3163  # 46,837 are judged, as in the paper


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("[[1", "it is not JSON"),
        ('{"a": 1}', "a list of class numbers"),
        ("[[1000]]", "class numbers"),
        ("[[1]]", "50000 lists"),
    ],
)
def test_another_file_is_refused(tmp_path, content, rule):
    path = tmp_path / "real.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=rule):
        read_real_labels(path)
    with pytest.raises(ValueError, match="there is no such file"):
        read_real_labels(tmp_path / "none.json")
