"""A run on a folder of one's own, and commands that are given other images than the run's."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.data.image_folders import make_folder, truncate
from tests.training.tiny import tiny
from vit.analysis.targets import AnalysisTarget
from vit.cli import main
from vit.config import DataConfig
from vit.settings import dump_run_config
from vit.training.loop import train

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("own") / "photos", {"cat": 10, "dog": 10})


@pytest.fixture(scope="module")
def run(photos: Path) -> Path:
    folder = photos.parent / "run"
    data = DataConfig(
        name="imagefolder", root=str(photos), test_fraction=0.3, batch_size=8, workers=0, eval_batch_size=7
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
        train(tiny(train={"epochs": 1}, data=data), folder)
    return folder


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """Images that the run has not seen."""
    return make_folder(tmp_path / "new", {"cat": 8, "dog": 7}, size=(16, 16))


@pytest.fixture(autouse=True)
def _no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.tasks.classification.evaluation.save_figure", lambda *_: None)


@pytest.mark.parametrize("skipped", [True, False])
def test_broken_images_are_in_the_last_line_and_in_the_card(
    skipped: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    monkeypatch.setattr("vit.tasks.classification.analysis.RUN_FIGURES", ("patch_filters",))
    photos = make_folder(tmp_path / "photos" / "train", {"cat": 9, "dog": 9}).parent
    make_folder(photos / "test", {"cat": 3, "dog": 3}, size=(16, 16))
    broken = [photos / "train" / "cat" / f"00{number}.png" for number in range(4)] if skipped else []
    for path in [*broken, *([photos / "test" / "dog" / "000.png"] if skipped else [])]:
        truncate(path)
    data = DataConfig(name="imagefolder", root=str(photos), batch_size=8, workers=0, on_broken_image="skip")
    recipe, run = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(dump_run_config(tiny(train={"epochs": 1}, data=data), {}))
    assert main(["train", "--config", str(recipe), "--output_dir", str(run)]) == 0
    said, card = capsys.readouterr().out, (run / "README.md").read_text()
    if not skipped:
        assert "could not be read" not in said + card
        return
    count = json.loads((run / "summary.json").read_text())["train.n_broken"]
    line = f"{count} of 16 training images and 1 of 6 test images could not be read and were left out"
    assert count >= 2
    assert line in next(text for text in said.splitlines() if text.startswith(f"{run}: test top-1"))
    assert f"- {line}\n" in card


def evaluated(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    assert main(["eval", *words]) == 0
    said = capsys.readouterr()
    return json.loads(said.out.partition("\nvalidated")[0]), said.err


def test_all_images_of_another_folder_are_evaluated(
    run: Path, new: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics, said = evaluated(capsys, str(run), "--data", str(new), "--output_dir", str(tmp_path / "out"))
    assert metrics["n_total"] == 15
    assert f"note: {new} has no parts: all its 15 images are test images" in said
    listed = new / "list.csv"
    rows = [f"{path.relative_to(new)},{path.parent.name}" for path in sorted(new.rglob("*.png"))[4:]]
    listed.write_text("\n".join(["file,label", *rows]))
    assert evaluated(capsys, str(run), "--data", str(listed))[0]["n_total"] == 11
    asked = ("--data", str(new), "--data.test_fraction", "0.4")
    assert evaluated(capsys, str(run), *asked)[0]["n_total"] == 6
    assert evaluated(capsys, str(run), *asked[:3], "0.2")[0]["n_total"] == 3  # the default, and yet asked for
    with_parts = make_folder(tmp_path / "parts" / "Test", {"cat": 3, "dog": 1}).parent
    assert evaluated(capsys, str(run), "--data", str(with_parts))[0]["n_total"] == 4


def test_of_its_own_folder_the_run_evaluates_what_it_cut_off(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, said = evaluated(capsys, str(run))
    assert own["n_total"] == 6
    assert "6 of its 20 images are split off as one" in said
    again, _ = evaluated(capsys, str(run), "--data", f"{photos}/../photos")
    assert again["n_total"] == 6
    assert again["top1"] == own["top1"]


def test_models_that_are_no_runs_and_comparisons_take_all_images_too(
    run: Path, new: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = ["vit_tiny_patch16_32", "--random_weights", "--mean", *["0.5"] * 3, "--std", *["0.5"] * 3]
    metrics, said = evaluated(capsys, *random, "--data", str(new), "--output_dir", str(tmp_path / "eval"))
    assert metrics["n_total"] == 15
    assert "all its 15 images are test images" in said
    asked: list[DataConfig] = []
    monkeypatch.setattr("vit.comparison.compare.open_comparison", lambda request: asked.append(request.data))
    monkeypatch.setattr("vit.cli.compare.compare_and_report", lambda _: None)
    assert main(["compare", str(run), str(run), "--data", str(new)]) == 0
    assert main(["compare", str(run), str(run)]) == 0
    assert [data.test_fraction for data in asked] == [1.0, 0.3]


def test_data_of_other_classes_is_named(run: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--data", "fake", "--data.fake_classes", "2"]) == 2
    assert capsys.readouterr().err == (
        "vit: data.name: 'fake' is not valid: its 2 classes are not the run's 2: class 0 is 'pattern 0', the run's is "
        "'cat'\n"
    )
    make_folder(new, {"eel": 3})
    assert main(["eval", str(run), "--data", str(new)]) == 2
    assert (
        f"data.root: '{new}' is not valid: its 3 classes are not the run's 2: class 2 is 'eel', the run's is not"
        in (capsys.readouterr().err)
    )


def test_a_run_is_exported_without_its_images(
    run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = []

    def export(*_: object, **options: Any) -> SimpleNamespace:
        trials.append(options["trial"])
        return SimpleNamespace(text=lambda: "exported")

    monkeypatch.setattr("vit.deployment.export.export_classifier", export)
    words = ["export", str(run), "--format", "torch", "--output", str(tmp_path / "model.pt2")]
    moved = photos.rename(tmp_path / "moved")
    try:
        assert main(words) == 0
        assert capsys.readouterr().err.startswith("note: the run's own images are not here: data.root: there is no fol")
        assert trials == [None]
        assert main([*words, "--images", "5"]) == 2
    finally:
        moved.rename(photos)
    assert main(words) == 0
    assert len(trials[1].split) == 2


def test_an_analysis_says_how_folders_are_classes(
    run: Path, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def draw(target: AnalysisTarget, *_: object, **__: object) -> dict[str, dict[str, str]]:
        left_out = {} if target.has_matching_classes else {"head_ablation": "why"}
        return {"pictures": {"patch_filters": "file"}, "left_out": left_out}

    monkeypatch.setattr("vit.analysis.report.draw_analysis", draw)
    words = ["analyze", str(run), "--output_dir", str(tmp_path / "analysis"), "--data"]
    asked = f"imagefolder --data.root {new}"
    note = f"note: {new} was read as images without classes; if its folders are classes: --data {asked}\n"
    for data, said in (([str(new)], note), (asked.split(), ""), ([str(new / "cat")], "")):
        assert main([*words, *data]) == 0
        assert capsys.readouterr().err == said


def test_predict_takes_a_list(run: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With classes and without."""
    (new / "list.csv").write_text("file,label\ncat/000.png,cat\ndog/001.png,dog\n")
    (new / "list.tsv").write_text("id\tImage\tpath\n1\tx\tcat/002.png\n")
    words = ["predict", str(run), "--device", "cpu", "--top", "1", "--format", "csv"]
    assert main([*words, str(new / "list.csv"), str(new / "list.tsv")]) == 0
    _, *rows = csv.reader(capsys.readouterr().out.splitlines())
    assert [row[0] for row in rows] == [str(new / name) for name in ("cat/000.png", "dog/001.png", "cat/002.png")]
    (new / "list.csv").write_text("x,label\ncat/000.png,cat\n")
    assert main([*words, str(new / "list.csv")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "list.csv' is not valid: it has the columns x, label; its first line must name one of file, " in line


@pytest.mark.parametrize("content", [b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\n\xff", b"\x89PNG\r\n\x1a\n\x00\x00"])
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_an_image_itself_on_the_standard_input(
    content: bytes, errors: str, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors=errors))
    assert main(["predict", str(run), "-"]) == 2
    assert capsys.readouterr().err == (
        "vit: image: - reads names of images from the standard input, one a line; it holds no text\n"
    )


def test_images_of_ones_own_have_their_configuration_and_digits_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(tmp_path / "zoo", {"cat": 5, "dog": 5})
    for data, size in (([f"--data={tmp_path / 'zoo'}"], "image (64, 64)"), (["--data", "digits"], "image (8, 8)")):
        assert main(["plan", *data]) == 0
        assert size in capsys.readouterr().out
    assert main(["plan", "--data", str(tmp_path / "zoo"), "--config", "digits_vit"]) == 0
    assert "image (8, 8)" in capsys.readouterr().out
