"""Runs that have seen the images that they are compared on: refused, counted and said."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.training.tiny import tiny
from vit.cli import main
from vit.comparison.leaks import SEEN_ROW
from vit.config import DataConfig
from vit.data.file_source import FileSource
from vit.data.identity import count_shared, file_identities
from vit.data.images import Split, open_test, open_training
from vit.data.run_images import RunImage
from vit.evaluation.seen_images import SeenImages, _found_in_list, seen_by_run, seen_images
from vit.hub import open_model
from vit.training.loop import train

PER_CLASS = 12


def write_images(folder: Path, names: range, seed: int, classes: str = "ab") -> None:
    draw = np.random.default_rng(seed)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in names:
            pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`honest/` with train/ and val/; `copied/`: the same, with half of the val images under other names in train/."""
    place = tmp_path_factory.mktemp("leaks")
    write_images(place / "honest" / "train", range(PER_CLASS), seed=1)
    write_images(place / "honest" / "val", range(4), seed=2)
    shutil.copytree(place / "honest", place / "copied")
    for name in "ab":
        for number in range(2):
            shutil.copy(
                place / "honest" / "val" / name / f"{number}.png", place / "copied/train" / name / f"x{number}.png"
            )
    write_images(place / "copied" / "elsewhere", range(4), seed=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
        for name in ("honest", "copied"):
            train_on(place / name, place / f"run_{name}")
        train_on(place / "honest", place / "run_after", pretrained=str(place / "run_copied"))
    return place


def train_on(root: Path, folder: Path, pretrained: str | None = None) -> None:
    """A run for which every training image trains, but one of each class."""
    model = {"pretrained": pretrained, "new_head": bool(pretrained)}
    config = tiny(train={"epochs": 1, "precision": "fp32"}, model=model)
    data = DataConfig(name="imagefolder", root=str(root), workers=0, batch_size=8, val_fraction=0.01)
    train(replace(config, data=data), folder)


def compare(place: Path, *words: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    """What is printed, on standard error where it fails."""
    argv = ["compare", *words, "--data", "imagefolder", "--data.root", str(place / "honest"), "--data.workers", "0"]
    capsys.readouterr()
    assert main([*argv, "--output_dir", str(place / "out"), "--device", "cpu"]) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


def test_a_run_that_has_seen_test_images_is_refused_with_their_number(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(place / "out", ignore_errors=True)
    runs = [str(place / "run_honest"), str(place / "run_copied")]
    said = compare(place, *runs, capsys=capsys, code=2)
    assert f"of 8 test images 4 are training images of {runs[1]}; " in said
    assert "--leaky" in said
    assert runs[0] not in said
    assert said.count("\n") == 1
    assert not (place / "out").exists()


def test_with_leaky_the_page_and_the_numbers_say_so(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(place / "run_honest"), str(place / "run_copied")]
    compare(place, *runs, "--leaky", capsys=capsys)
    warning = f"4 of 8 test images are training images of {runs[1]}"
    result = json.loads((place / "out" / "comparison.json").read_text())
    assert result["warnings"][0].startswith(warning)
    assert [each["training"] for each in result["seen_images"]] == [0, 4]
    assert [model["provenance"][SEEN_ROW] for model in result["models"]] == ["0 of 8", "4 of 8"]
    assert warning in (place / "out" / "comparison.html").read_text()
    assert f"| {SEEN_ROW} | 0 of 8 | 4 of 8 |" in (place / "out" / "comparison.md").read_text()


def test_a_run_that_began_from_such_a_run_is_refused_too(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(place / "run_honest"), str(place / "run_after")]
    said = compare(place, *runs, capsys=capsys, code=2)
    assert f"4 are training images of {place / 'run_copied'}" in said


def test_frozen_features_of_such_a_run_are_refused_too(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(place / "run_honest"), str(place / "run_copied")]
    said = compare(place, *runs, "--transfer", capsys=capsys, code=2)
    assert f"4 are training images of {runs[1]}" in said
    compare(place, *runs, "--transfer", "--leaky", capsys=capsys)
    result = json.loads((place / "out" / "transfer.json").read_text())
    assert result["warnings"][0].startswith("4 of 8 test images are training images")


def test_what_cannot_be_checked_is_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The data of a run are gone, or others than those it was trained on, and the run has no list of them."""
    runs = [str(place / "run_honest"), str(place / "run_copied")]
    added, images = place / "copied" / "train" / "a" / "later.png", place / "run_copied" / "images.csv"
    shutil.copy(place / "honest" / "val" / "b" / "3.png", added)
    listed = images.read_text()
    try:
        said = compare(place, *runs, capsys=capsys, code=2)
        images.unlink()
        printed = compare(place, *runs, capsys=capsys)
    finally:
        added.unlink()
        images.write_text(listed)
    assert f"4 are training images of {runs[1]}" in said
    assert f"Whether {runs[1]} was trained on test images could not be checked: the images" in printed
    (place / "copied").rename(place / "away")
    try:
        known = compare(place, *runs, capsys=capsys, code=2)
        images.unlink()
        printed = compare(place, *runs, capsys=capsys)
    finally:
        (place / "away").rename(place / "copied")
        images.write_text(listed)
    assert known == said, "by its list a run knows its images wherever they are"
    assert "could not be checked: its training images are not at hand (" in printed
    assert "| not checked |" in (place / "out" / "comparison.md").read_text()


@pytest.mark.parametrize("model", ["run_copied", "run_after"])
def test_eval_warns_and_does_not_refuse(place: Path, capsys: pytest.CaptureFixture[str], model: str) -> None:
    argv = ["eval", str(place / model), "--data.root", str(place / "honest"), "--output_dir", str(place / "eval")]
    assert main([*argv, "--data.workers", "0", "--device", "cpu"]) == 0
    printed = capsys.readouterr()
    warning = f"4 of 8 test images are training images of {place / 'run_copied'}"
    assert warning in printed.err
    assert json.loads(printed.out)["warnings"][0].startswith(warning)
    (record,) = (place / "eval").glob("imagefolder-honest-*_best_auto.json")
    assert json.loads(record.read_text())["warnings"][0].startswith(warning)


def _cannot_be_read(*_: object) -> Path:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("a file is gone", "holds no readable checkpoint"),
        ("it may not be read", "Permission denied"),
        ("it is gone", "it is not there any more"),
    ],
)
def test_a_run_that_began_from_a_damaged_one_opens_and_says_so(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, said: str
) -> None:
    config, before = DataConfig(name="imagefolder", root=str(place / "honest")), place / "run_copied"
    shutil.copytree(before, tmp_path / "away")
    try:
        for file in before.glob("checkpoints/*/optimizer.safetensors"):
            file.unlink()
        if damage == "it is gone":
            shutil.rmtree(before)
        if damage == "it may not be read":
            monkeypatch.setattr("vit.runs.checkpoints.last_checkpoint", _cannot_be_read)
            opened = open_model(next((place / "run_after").glob("checkpoints/step-*")))
        else:
            opened = open_model(place / "run_after")
        found = seen_images(opened, config, open_test(config))
        begun = seen_by_run(str(before), config, open_test(config))
    finally:
        shutil.rmtree(before, ignore_errors=True)
        (tmp_path / "away").rename(before)
    assert opened.provenance.data[0] == "not stated (run_copied)"
    assert [each.run for each in found] == [opened.source, str(before)]
    assert f"Whether {before} was trained on test images could not be checked: " in found[1].warning()
    assert said in found[1].warning()
    assert [each.unchecked for each in begun] == ([] if damage == "it is gone" else [found[1].unchecked])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task": "masked_autoencoder"}, "4 of 8 test images are training images of"),
        ({"data": {"name": "table"}}, "could not be checked: its images are in a table of labels"),
    ],
)
def test_runs_of_other_tasks(place: Path, changes: dict[str, Any], said: str) -> None:
    opened = open_model(place / "run_copied")
    assert opened.state is not None
    config = opened.state["config"]
    data = config["data"] | changes.get("data", {})
    opened = replace(opened, state={**opened.state, "config": {**config, **changes, "data": data}})
    asked = DataConfig(name="imagefolder", root=str(place / "honest"))
    (found,) = seen_images(opened, asked, open_test(asked))
    assert said in found.warning()


def test_a_run_on_its_own_test_images_needs_no_warning(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["eval", str(place / "run_honest"), "--output_dir", str(place / "eval"), "--data.workers", "0"]
    assert main([*argv, "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []


def _without_one_identity(listed: Path) -> list[str]:
    head, first, *others = listed.read_text().splitlines(keepends=True)
    return [head, first.rpartition(",")[0] + ",\n", *others]


def test_a_run_without_its_list_says_that_replaced_images_are_not_known(place: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(place / "run_honest", run)
    config = DataConfig(name="imagefolder", root=str(place / "honest"), workers=0, val_fraction=0.01)
    opened, test = open_model(str(run)), open_test(config)
    assert [each.warning() for each in seen_images(opened, config, test)] == [""]
    (run / "images.csv").write_text("".join(_without_one_identity(run / "images.csv")))
    assert [each.warning() for each in seen_images(opened, config, test)] == [""], "one that could not be read"
    (run / "images.csv").unlink()
    (found,) = seen_images(opened, config, test)
    assert found.warning() == (
        f"Whether images were replaced since {run} was trained could not be checked: {run / 'images.csv'} is missing."
    )


def test_images_are_the_same_by_bytes_and_across_sources_by_pixels(tmp_path: Path) -> None:
    digits = open_test(DataConfig(name="digits"))
    for index in (0, 1, 2):
        folder = tmp_path / "train" / str(index % 2)
        folder.mkdir(parents=True, exist_ok=True)
        digits.source.read(index).save(folder / f"{index}.png")
    for number in range(2):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "train" / str(number) / "own.png")
    shutil.copytree(tmp_path / "train", tmp_path / "val")
    (tmp_path / "val" / "0" / "0.png").write_bytes(b"no image")
    config = DataConfig(name="imagefolder", root=str(tmp_path), val_fraction=0.01)
    train_split, validation = open_training(config)
    test = open_test(config)
    assert count_shared(test, train_split) + count_shared(test, validation) == len(test) - 1
    assert count_shared(digits, train_split) + count_shared(digits, validation) == 3


@pytest.mark.parametrize("in_one_division", [False, True])
def test_an_image_that_shares_the_end_of_a_training_image_was_not_seen(tmp_path: Path, in_one_division: bool) -> None:
    """As without compression before one background; the training images are at hand, so that all of them tells."""
    for name, top in {"one.bmp": 1, "two.bmp": 2, "another.bmp": 3, "copy.bmp": 1}.items():
        image = Image.new("RGB", (256, 256), "white")
        image.paste((top, top, top), (0, 240, 256, 256))  # a BMP begins with the last row
        image.save(tmp_path / name)
    same = file_identities([tmp_path / "one.bmp"], "images")[0]
    listed = {"one.bmp": RunImage("train", same), "two.bmp": RunImage("train", same)}
    source = FileSource(tmp_path, ["another.bmp", "copy.bmp"], torch.zeros(2, dtype=torch.int64), [""])
    own, test = DataConfig(name="imagefolder", root=str(tmp_path)), Split(source, torch.arange(2))
    found = _found_in_list(SeenImages("model", "run"), listed, test, own, in_one_division=in_one_division)
    assert (found.training, found.copies) == ((0, 1) if in_one_division else (1, 0))
    (tmp_path / "two.bmp").unlink()  # which may have been the other one
    found = _found_in_list(SeenImages("model", "run"), listed, test, own, in_one_division=in_one_division)
    assert (found.training, found.copies) == ((1, 1) if in_one_division else (2, 0))
