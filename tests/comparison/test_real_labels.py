"""ReaL labels, by hand and against the list that timm ships."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vit.comparison.real_labels import imagenet_real_accuracy, read_real_labels, real_labels_of


def test_real_accuracy_leaves_out_images_without_labels() -> None:
    found = imagenet_real_accuracy(np.array([3, 4, 5, 6]), [[1, 3], [], [4], [6]])
    assert (found.accuracy, found.num_images, found.num_unlabelled) == (pytest.approx(2 / 3), 3, 1)
    with pytest.raises(ValueError, match="none of the images has a label"):
        imagenet_real_accuracy(np.array([3]), [[]])


def test_real_labels_go_by_the_images_names() -> None:
    labels = [[number] for number in range(20)]
    names = ["val/n01440764/ILSVRC2012_val_00000007.JPEG", "ILSVRC2012_val_00000020_n01.JPEG"]
    assert real_labels_of(names, labels) == [[6], [19]]


@pytest.mark.parametrize("name", ["val/7.JPEG", "ILSVRC2012_val_00000021.JPEG", "ILSVRC2012_val_00000000.JPEG"])
def test_an_image_without_real_labels_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=r"real_labels: .* is not valid: its name must hold"):
        real_labels_of([name], [[number] for number in range(20)])


def test_the_file_of_real_labels() -> None:
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
def test_another_file_is_refused(tmp_path: Path, content: str, rule: str) -> None:
    path = tmp_path / "real.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=rule):
        read_real_labels(path)
    with pytest.raises(ValueError, match="there is no such file"):
        read_real_labels(tmp_path / "none.json")
