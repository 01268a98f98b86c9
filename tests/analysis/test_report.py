"""The whole of `vit analyze` on a small model: what it writes, keeps, leaves out and refuses."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.training.tiny import tiny
from vit import create_model
from vit.analysis import drawings
from vit.analysis.picture import Picture
from vit.analysis.report import draw_analysis
from vit.analysis.subjects import ImageSet, Subject, SubjectRequest, find_images, find_model, open_subject
from vit.cli import main
from vit.config import Preprocessing
from vit.training.loop import train

QUICK = ("attention_distance", "attention_entropy")


def subject_of(num_images: int = 2, **options: object) -> Subject:
    torch.manual_seed(0)
    settings = {"num_classes": 3, "image_size": 32, "patch_size": 8, "width": 24, "depth": 2, "num_heads": 2}
    model = create_model("vit_tiny_patch16_224", **(settings | options)).eval()
    pixels = torch.randint(0, 256, (num_images, 3, 32, 32), dtype=torch.uint8)
    images = ImageSet(pixels=pixels, names=[f"image {place}" for place in range(num_images)], source="made")
    return Subject(name="small", model=model, preprocessing=Preprocessing(image_size=(32, 32)), images=images)


def test_numbers_beside_pictures_and_one_page(tmp_path: Path) -> None:
    draw_analysis(subject_of(), tmp_path, QUICK)
    with (tmp_path / "figures" / "attention_distance.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["layer"], row["head"]) for row in rows] == [("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")]
    distance = json.loads((tmp_path / "figures" / "attention_distance.json").read_text())
    assert float(rows[3]["distance"]) == pytest.approx(distance["pixels"][1][1])
    check_folder(tmp_path, set(QUICK))


@pytest.mark.slow
def test_every_figure(tmp_path: Path) -> None:
    subject = subject_of(5, num_registers=1)
    labelled = replace(subject.images, labels=torch.tensor([0, 1, 2, 0, 1]), class_names=("a", "b", "c"))
    state = draw_analysis(replace(subject, images=labelled, class_names=("a", "b", "c")), tmp_path)
    assert set(state["left_out"]) == {"layer_probe"}
    check_folder(tmp_path, set(drawings.DRAWINGS) - {"layer_probe"})


def check_folder(folder: Path, drawn: set[str]) -> None:
    state = json.loads((folder / "analysis.json").read_text())
    assert set(state["pictures"]) == drawn
    for name in drawn:
        numbers = json.loads((folder / "figures" / f"{name}.json").read_text())
        assert numbers["conventions"]
        assert (folder / "figures" / f"{name}.png").stat().st_size > 2000
        assert (folder / "figures" / f"{name}.svg").read_text().startswith("<?xml")
    page = (folder / "analysis.html").read_text()
    assert page.count("data:image/png;base64,") == len(drawn)
    assert 'src="figures' not in page
    assert "<script" not in page


def test_what_is_finished_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Subject) -> Picture:
        raise KeyboardInterrupt

    whole = drawings.DRAWINGS["attention_entropy"]
    monkeypatch.setitem(drawings.DRAWINGS, "attention_entropy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        draw_analysis(subject_of(), tmp_path, QUICK)
    monkeypatch.setitem(drawings.DRAWINGS, "attention_entropy", whole)
    monkeypatch.setitem(drawings.DRAWINGS, "attention_distance", interrupted)
    lines: list[str] = []
    state = draw_analysis(subject_of(), tmp_path, QUICK, tell=lines.append)
    assert list(state["pictures"]) == list(QUICK)
    assert lines[0] == "1 of 2: attention_distance, kept"
    with pytest.raises(KeyboardInterrupt):  # other images: nothing is kept
        draw_analysis(subject_of(3), tmp_path, QUICK)


def test_what_belongs_to_other_settings_or_is_gone_is_drawn_again(tmp_path: Path) -> None:
    kept: list[str] = []
    subject = subject_of(5)
    draw_analysis(subject, tmp_path, QUICK)
    (tmp_path / "figures" / "attention_entropy.svg").unlink()
    draw_analysis(subject, tmp_path, QUICK, tell=kept.append)
    assert [line.endswith("kept") for line in kept] == [True, False]
    assert (tmp_path / "figures" / "attention_entropy.svg").is_file()
    labels = replace(subject, images=replace(subject.images, labels=torch.arange(5)))
    draw_analysis(labels, tmp_path, QUICK[:1], tell=kept.append)
    assert not kept[-1].endswith("kept")
    assert not (tmp_path / "figures" / "attention_entropy.png").exists(), "it was of the other subject"
    (tmp_path / "analysis.json").write_text("{")
    with pytest.raises(ValueError, match=r"--output: .*analysis\.json is damaged .*; delete it to begin anew"):
        draw_analysis(subject, tmp_path, QUICK)


def test_a_run_is_looked_into_on_its_own_test_images_with_its_own_weights(tmp_path: Path) -> None:
    train(tiny(train={"epochs": 1}), tmp_path / "run")
    request = SubjectRequest(model=str(tmp_path / "run"), num_images=9)
    subject = open_subject(request)
    assert subject.images.source == "fake, test"
    assert subject.knows_the_classes
    for options, message in (
        ({"random_weights": True}, "--random_weights: True is not valid: a run of ours has its own weights"),
        ({"seed": 3}, "--seed: 3 is not valid: it has an effect only with --random_weights"),
        ({"model": "timm:test_vit", "random_weights": True, "select": "last"}, "--select: 'last' is not valid"),
    ):
        with pytest.raises(ValueError, match=message):
            open_subject(replace(request, **options))


def test_what_a_model_has_not_is_left_out_with_the_reason(tmp_path: Path) -> None:
    state = draw_analysis(subject_of(positions="none"), tmp_path, ("position_similarity", "layer_similarity"))
    assert "position" in state["left_out"]["position_similarity"]
    assert "at least 4 images" in state["left_out"]["layer_similarity"]
    with pytest.raises(ValueError, match="--figures: 'rolout' is not valid"):
        draw_analysis(subject_of(), tmp_path, ("rolout",))


def test_images_of_files_folders_data_sets_and_none(tmp_path: Path) -> None:
    preprocessing = Preprocessing(image_size=(16, 16))
    for place in range(5):
        Image.fromarray(np.full((20, 30, 3), 50 * place, dtype=np.uint8)).save(tmp_path / f"{place}.png")
    some = find_images([str(tmp_path)], [], preprocessing, 2)
    assert some.names == ["0.png", "4.png"]
    assert some.pixels[1].unique().tolist() == [200]
    assert find_images([str(tmp_path / "3.png")], [], preprocessing, 9).pixels.shape == (1, 3, 16, 16)
    digits = find_images(["digits"], [], preprocessing, 30)
    assert digits.labels is not None
    assert digits.labels.unique().tolist() == list(range(10))
    assert digits.data is not None
    assert find_images([], [], preprocessing, 9).names == ["china.jpg", "flower.jpg"]
    (tmp_path / "broken.png").write_text("no image")
    for places, settings, message in (
        ([str(tmp_path / "broken.png")], [], "is not a readable image"),
        ([str(tmp_path / "missing.png")], [], "it is no file, no folder"),
        ([], ["--data.root", "x"], "it has an effect only with --data naming a data set"),
    ):
        with pytest.raises(ValueError, match=message):
            find_images(places, settings, preprocessing, 9)


def test_models_that_are_no_models() -> None:
    with pytest.raises(ValueError, match="give --random_weights"):
        find_model("vit_tiny_patch16_224")
    with pytest.raises(ValueError, match="did you mean 'vit_tiny_patch16_224'"):
        find_model("vitt_tiny_patch16_224")
    with pytest.raises(ValueError, match="no attention"):
        find_model("resnet18", random_weights=True)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["analyze", "vit_tiny_patch16_224", "--random_weights", "--images", "1", "--figures", "patch_filters"]
    assert main([*words, "--output", str(tmp_path)]) == 0
    assert "1 figures; see" in capsys.readouterr().out
    assert (tmp_path / "analysis.html").exists()
    assert main(["analyze", "nothing"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
