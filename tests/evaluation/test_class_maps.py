"""Subsets of ImageNet's classes, by hand and against the lists that libraries ship."""

from __future__ import annotations

from pathlib import Path

import pytest

from vit.evaluation.class_maps import IMAGENETTE, imagenet_columns, imagenet_wnids

TINY = Path(__file__).parents[3] / "shared" / "data" / "tiny-imagenet-200-val.zip"


def test_the_thousand() -> None:
    assert len(imagenet_wnids()) == 1000
    assert list(imagenet_wnids()) == sorted(set(imagenet_wnids()))
    assert (imagenet_wnids()[0], imagenet_wnids()[217], imagenet_wnids()[701], imagenet_wnids()[999]) == (
        "n01440764",
        "n02102040",
        "n03888257",
        "n15075141",
    )


def test_imagenettes_classes_are_torchvisions() -> None:
    from torchvision.datasets import Imagenette

    assert {wnid: names[0] for wnid, names in Imagenette._WNID_TO_CLASS.items()} == IMAGENETTE
    columns = [0, 217, 482, 491, 497, 566, 569, 571, 574, 701]
    assert imagenet_columns(list(IMAGENETTE)) == columns
    assert imagenet_columns(list(IMAGENETTE.values())) == columns
    assert imagenet_columns(["n03888257", "n01440764"]) == [701, 0]
    assert imagenet_columns(["n03888257", "cat"]) is None
    assert imagenet_columns([]) is None


@pytest.mark.skipif(not TINY.exists(), reason="shared/data is not here")
def test_tiny_imagenets_classes_are_all_there() -> None:
    import zipfile

    with zipfile.ZipFile(TINY) as archive:
        names = sorted({parts[2] for name in archive.namelist() if len(parts := name.split("/")) == 4 and parts[3]})
    columns = imagenet_columns(names)
    assert len(names) == 200
    assert columns is not None
    assert [imagenet_wnids()[column] for column in columns] == names
