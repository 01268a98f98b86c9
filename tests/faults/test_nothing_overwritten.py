"""Files of somebody else's, and earlier results, are refused or put aside, never written over in silence."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.data.image_folders import make_folder
from tests.training.tiny import tiny
from vit.cli import main
from vit.settings import dump_run_config
from vit.training.loop import train

RANDOM_MODEL = ["vit_tiny_patch16_224", "--random_weights", "--image_size", "32"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos` with two copies of training images in its test set, and the finished run `run` on them."""
    folder = tmp_path_factory.mktemp("place")
    for part, count in (("train", 12), ("test", 6)):
        make_folder(folder / "photos" / part, {"cat": count, "dog": count}, size=(count + 4, count + 4))
    for name in ("000.png", "001.png"):
        shutil.copy(folder / "photos" / "train" / "cat" / name, folder / "photos" / "test" / "cat" / name)
    config = tiny(train={"epochs": 1}, data={"fake_images": 512, "fake_classes": 10})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
        train(
            replace(config, data=replace(config.data, name="imagefolder", root=str(folder / "photos"))), folder / "run"
        )
    return folder


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("README.md", "# my project"),
        ("summary.json", "{}"),
        ("metrics.jsonl", "mine\n"),
        ("figures/fox.txt", "mine"),
        ("config.yaml", "model:\n  name: vit  # a recipe by hand\ntrain:\n  epochs: 3\n"),
        ("images.csv", "file,label\na.jpg,cat\n"),
        ("cat/fox.png", ""),
    ],
)
@pytest.mark.parametrize("more", [[], ["--resume"]], ids=["begun", "resumed"])
def test_no_run_begins_among_files_of_others(
    name: str, content: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "project" / name
    file.parent.mkdir(parents=True)
    file.write_text(content)
    (tmp_path / "recipe.yaml").write_text(dump_run_config(tiny(), {}))
    words = ["train", "--config", str(tmp_path / "recipe.yaml"), "--output_dir", str(tmp_path / "project")]
    assert main([*words, *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    holds_images = "it holds images, in cat/, and a run's folders beside them would be taken for classes"
    written = "a run writes such files, and these are none of a run: "
    assert (holds_images if name == "cat/fox.png" else written) in line
    assert name.split("/")[0] in line
    assert file.read_text() == content
    assert [path for path in (tmp_path / "project").rglob("*") if path.is_file()] == [file]


def test_a_run_begins_where_one_was_stopped_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").write_text(dump_run_config(tiny(), {}))
    (tmp_path / "metrics.jsonl").touch()
    monkeypatch.setattr("vit.training.loop.finish_run", lambda _: (_ for _ in ()).throw(ValueError("trained")))
    with pytest.raises(ValueError, match="trained"):
        train(tiny(), tmp_path)


def test_convert_spares_its_source_and_other_folders(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file, folder = str(place / "run"), tmp_path / "new" / "w.safetensors", tmp_path / "hf"
    assert main(["convert", run, "--to", "timm", "--output", str(file)]) == 0
    assert main(["convert", run, "--to", "hf", "--output", str(folder)]) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()
    for words, said in (
        (
            ["convert", str(folder), "--to", "timm", "--output", str(folder / "model.safetensors")],
            "it is the model that is converted, or in its folder",
        ),
        (["convert", run, "--to", "hf", "--output", str(folder)], "it holds files already; name a new folder"),
    ):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_earlier_comparison_is_put_aside(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, output = str(place / "run"), tmp_path / "comparison"
    words = ["compare", run, run, "--output_dir", str(output)]
    assert main([*words, "--images", "6"]) == 0
    first = (output / "comparison.json").read_bytes()
    assert main([*words, "--images", "6"]) == 0
    assert not (output / "earlier-1").exists(), "the same models and images"
    assert main(words) == 0
    assert "was of other models, images or settings, and is in" in capsys.readouterr().err
    assert (output / "earlier-1" / "comparison.json").read_bytes() == first
    assert (output / "earlier-1" / "comparison.html").is_file()
    second = json.loads((output / "comparison.json").read_text())
    assert second["data"]["images"] == 12
    assert main([*words, "--speed"]) == 0
    assert not (output / "earlier-2").exists(), "nothing is lost"
    second = json.loads((output / "comparison.json").read_text())
    (output / "comparison_notes.txt").write_text("mine")
    assert main([*words, "--image_size", "16"]) == 0
    assert json.loads((output / "earlier-2" / "comparison.json").read_text()) == second
    assert (output / "comparison_notes.txt").read_text() == "mine"
    assert main([*words, "--image_size", "16", "--speed"]) == 0
    assert main([*words, "--image_size", "16"]) == 0
    assert (output / "earlier-3" / "comparison.json").is_file(), "speeds"


def test_an_earlier_evaluation_is_put_aside(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "vit_tiny_patch16_224", "--random_weights", "--data", str(place / "photos")]
    assert main([*words, "--image_size", "32", "--output_dir", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("*.json")
    first = file.read_bytes()
    assert main([*words, "--image_size", "48", "--output_dir", str(tmp_path)]) == 0
    assert "an earlier evaluation, made otherwise, is kept in" in capsys.readouterr().err
    assert (tmp_path / "earlier-1" / file.name).read_bytes() == first
    assert json.loads(file.read_text())["preprocessing"]["image_size"] == [48, 48]


def test_an_evaluation_of_images_that_were_replaced_is_put_aside(place: Path, tmp_path: Path) -> None:
    """Here by one that the model takes for the same: only the size of the file tells."""
    photos = tmp_path / "photos"
    shutil.copytree(place / "photos", photos)
    words = ["eval", str(place / "run"), "--data", str(photos), "--output_dir", str(tmp_path / "out")]
    assert main(words) == 0
    (file,) = (tmp_path / "out").glob("*_best_auto.json")
    first = file.read_bytes()
    image = next((photos / "test").rglob("*.png"))
    image.write_bytes(image.read_bytes() + b"more")
    assert main(words) == 0
    assert (tmp_path / "out" / "earlier-1" / file.name).read_bytes() == first


def test_an_evaluation_with_frozen_features_is_put_aside(place: Path, tmp_path: Path) -> None:
    words = ["eval", str(place / "run"), "--output_dir", str(tmp_path)]
    assert main([*words, "--transfer"]) == 0
    (file,) = tmp_path.glob("*_best_auto.json")
    record = json.loads(file.read_text())
    assert "transfer" in record
    del record["transfer_options"]  # as an earlier version wrote it
    file.write_text(json.dumps(record))
    first = file.read_bytes()
    assert main(words) == 0
    assert (tmp_path / "earlier-1" / file.name).read_bytes() == first
    assert "transfer" not in json.loads(file.read_text())


def test_outputs_do_not_go_into_the_folder_of_a_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, before = str(place / "run"), sorted((place / "run").rglob("*"))
    for words in (
        ["analyze", "vit_tiny_patch16_224", "--output_dir", run],
        ["compare", run, *RANDOM_MODEL, "--output_dir", run],
    ):
        assert main(words) == 2
        assert "it is the folder of a run; name another one" in capsys.readouterr().err
    assert sorted((place / "run").rglob("*")) == before


# ------------------------------------------------------------------ copies, and lists that were altered


def test_copies_of_training_images_are_said_by_every_evaluation(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, photos = str(place / "run"), str(place / "photos")
    assert main(["eval", run]) == 0
    said = "2 of 12 test images are copies of training or validation images"
    assert said in capsys.readouterr().err
    assert main(["compare", run, run, "--output_dir", str(tmp_path / "c")]) == 0
    assert said in capsys.readouterr().out
    words = ["eval", *RANDOM_MODEL, "--transfer", "--data", photos, "--output_dir", str(tmp_path / "t")]
    assert main(words) == 0
    assert "2 of the 12 test images are training or validation images too" in capsys.readouterr().err


def test_an_altered_list_of_images_is_found(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(place / "run", run)
    shutil.copytree(place / "photos" / "train", other)
    with (run / "images.csv").open() as file:
        listed = list(csv.reader(file))
    with (run / "images.csv").open("w") as file:
        csv.writer(file).writerows(row for row in listed if row[1] != "train")
    assert main(["eval", str(run), "--data", str(other)]) == 0
    said = capsys.readouterr().err
    assert "could not be checked" in said
    assert "images.csv was altered" in said


def test_a_finished_run_gets_its_history_back(place: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(place / "run", run)
    history = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.classification.analysis.draw_inside", lambda *_: None)
        assert main(["train", "--resume", str(run)]) == 0
    assert (run / "metrics.jsonl").read_bytes() == history


def test_what_is_no_run_or_no_data_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(place / "run")
    for words, said in (
        (["train", run], f"it is a run; `vit train --resume {run}` continues it, --model.pretrained {run} begins"),
        (["train", "--data", run], f"it is a run, not images; `vit train --resume {run}` continues it"),
        (["eval", run, "--checkpoint", "worst"], "--select best or last chooses a checkpoint"),
        (["eval", ""], "it is empty"),
    ):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line


def test_pictures_replace_no_other_files_beside_them(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rate.json").write_text('{"mine": 1}')
    words = ["plan", "--config", "your_images", "--data", str(place / "photos"), "--figure"]
    assert main([*words, str(tmp_path / "rate.png")]) == 2
    assert "which is a file of something else; name another picture" in capsys.readouterr().err
    assert (tmp_path / "rate.json").read_text() == '{"mine": 1}'
    assert main([*words, str(place / "photos" / "train" / "cat" / "rate.png")]) == 2
    assert "it lies among the images" in capsys.readouterr().err
    for _ in range(2):  # its own numbers may be replaced
        assert main([*words, str(tmp_path / "other.png")]) == 0


def test_an_edited_setting_of_a_stopped_run_is_named(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(place / "run", run)
    settings = run / "config.yaml"
    text = settings.read_text()
    (before,) = (line for line in text.splitlines() if line.startswith("  weight_decay: "))
    settings.write_text(text.replace(before, "  weight_decay: 0.5  # file"))
    for more in ([], ["--epochs", "3"]):
        assert main(["train", "--resume", str(run), *more]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"optim.weight_decay: 0.5 is not valid: {settings} was altered: the run was started with" in line


@pytest.mark.parametrize("history", ["", '{"step": 1, "lo', "\0" * 64], ids=["none", "cut", "lost in a power cut"])
def test_a_run_that_was_killed_at_once_begins_again(
    place: Path, history: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("config.yaml", "images.csv"):
        shutil.copy(place / "run" / name, run / name)
    (run / "metrics.jsonl").write_text(history)
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    assert main(["train", "--resume", str(run)]) == 0
    assert (run / "summary.json").is_file()


def test_numbers_of_a_report_are_none_of_a_picture(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "comparison.json").write_text('{"models": [], "conventions": {}}')
    words = ["plan", "--config", "your_images", "--data", str(place / "photos")]
    assert main([*words, "--figure", str(tmp_path / "comparison.png")]) == 2
    assert "which is a file of something else" in capsys.readouterr().err
