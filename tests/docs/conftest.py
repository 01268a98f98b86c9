"""A folder as the documents suppose it: own images, photographs and runs, all tiny."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.data.image_folders import make_folder, picture
from tests.docs.blocks import ROOT
from vit.cli import main

RUNS = ("digits_vit", "digits_resnet")
"""Packaged configurations whose runs the documents suppose to be there."""


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`my_images/CLASS/*.jpg`, `photos/*.jpg`, `photo.jpg` and a damaged file, beside the repository's scripts."""
    place = tmp_path_factory.mktemp("documents")
    make_folder(place / "my_images", {"cat": 30, "dog": 30, "fox": 30}, size=(80, 64), suffix="jpg")
    make_folder(place, {"photos": 3}, size=(96, 80), suffix="jpg")
    picture((90, 70), 1).save(place / "photo.jpg")
    (place / "weights.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    for name in ("train.py", "eval.py", "configs", "docs", "mkdocs.yml"):
        (place / name).symlink_to(ROOT / name)
    return place


@pytest.fixture(scope="session")
def runs(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(images)
        for name in RUNS:
            assert main(["train", "--config", name, "--output_dir", str(place / name), "--train.epochs", "1"]) == 0
    return place


@pytest.fixture
def workplace(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The images in a folder of the test's own, which is the current one."""
    place = tmp_path / "work"
    shutil.copytree(images, place, symlinks=True)
    monkeypatch.chdir(place)
    return place
