"""The command `vit`: its exit codes, and one line on standard error for every error."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.data.image_folders import make_folder
from tests.training.test_loop import at_step
from tests.training.tiny import tiny
from vit import __version__
from vit.cli import COMMANDS, main
from vit.runs import last_checkpoint, read_metrics
from vit.settings import dump_run_config, flat_settings
from vit.tasks.classification.config import ClassificationRun
from vit.tasks.task import NonFinite
from vit.training import loop
from vit.training.loop import train
from vit.training.schedule import learning_rate

CONFIG = tiny(train={"epochs": 1}, data={"fake_classes": 7, "fake_images": 42})


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(dump_run_config(CONFIG, {}))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
        train(CONFIG, folder)
    return folder


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images") / "image.png"
    Image.new("RGB", (20, 30), (200, 30, 30)).save(path)
    return path


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Return standard error, which must be one line and no traceback."""
    said = capsys.readouterr()
    lines = said.err.strip().splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("vit: ")
    assert "Traceback" not in said.err
    return lines[0]


OTHER_DATA = ["--data.fake_images", "512", "--data.fake_classes", "10", "--data.name"]
"""Another set, without what has an effect on synthetic images only."""

WRONG = {
    "unknown key": (["--optim.learning_rat", "1"], r"--optim.learning_rat: there is no such setting"),
    "wrong type": (["--train.epochs", "many"], "train.epochs: 'many' is not valid: it must be a whole number"),
    "image that the patch does not divide": (["--model.image_size", "10"], "nearest image sizes are 8 or 12"),
    "more heads than width": (["--model.num_heads", "32"], "model.num_heads: 32 is not valid"),
    "missing folder": ([*OTHER_DATA, "imagefolder", "--data.root", "/no/such"], "data.root: "),
    "missing data": ([*OTHER_DATA, "cifar10", "--data.root", "/no/such"], "pass --data.download true"),
    "unknown data": ([*OTHER_DATA, "cifar11"], "data.name: 'cifar11' is not a known data set"),
    "unknown model": (["--model.name", "vit_tinny_patch16_224"], "did you mean 'vit_tiny_patch16_224'"),
    "missing weights": (["--model.pretrained", "absent.pth"], "there is no file 'absent.pth'"),
    "stray word": (["stray"], "stray"),
    "abbreviated option": (["--res"], "--res: there is no such option or setting"),
    "half precision on a CPU": (["--train.precision", "fp16"], "train.precision: 'fp16' is not computed on a CPU"),
    "seed of 65 bits": (["--seed", str(2**64)], "seed: 18446744073709551616 is not valid: it must be at least 0 and"),
    "infinite rate": (["--optim.lr", ".inf"], "optim.lr: inf is not valid: it must be finite"),
    "mean that is not a number": (["--data.mean", "[.nan,0,0]"], "data.mean: (nan, 0.0, 0.0) is not valid"),
    "nothing between the layers": (["--model.mlp_ratio", "0.001"], "model.mlp_ratio: 0.001 is not valid"),
    "data set in small letters": ([*OTHER_DATA, "torchvision:mnist"], "did you mean 'MNIST'?"),
    "batch that does not divide": (["--train.accumulation_steps", "3"], "data.batch_size: 16 is not valid"),
}


@pytest.mark.parametrize(("words", "expected"), WRONG.values(), ids=list(WRONG))
def test_wrong_input_to_train(
    words: list[str], expected: str, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["train", "--config", str(recipe), "--output_dir", str(run), *words]) == 2
    assert expected in one_line(capsys)
    assert not run.exists()


def test_an_empty_image_for_a_resnet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = Path(__file__).parents[1] / "configs" / "digits_resnet.yaml"
    words = ["train", "--config", str(config), "--output_dir", str(tmp_path / "run"), "--model.image_size", "0"]
    words += ["--data.name", "fake"]
    assert main(words) == 2
    assert "model.image_size: (0, 0) is not valid" in one_line(capsys)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["trian"], "vit: there is no command 'trian'; did you mean 'train'?"),
        (["vit"], "vit: there is no command 'vit'; choose from analyze, compare"),
        (["train", "{recipe}"], "recipe.yaml' is not expected here: did you mean --config {recipe}?"),
        (["train", "digits_vit"], "did you mean --config digits_vit?"),
        (["plan", "{tmp}"], "did you mean --data {tmp}?"),
        (["train", "many"], "'many' is not expected here: a setting is given as --section.setting VALUE"),
        (["train", "--model.lr", "3"], "--model.lr: there is no such setting; did you mean 'optim.lr'?"),
        (["train", "--model.image_size", "-1"], "model.image_size: (-1, -1) is not valid: it must be above 0"),
        (["convert", "{run}", "--to", "timm"], "--output: there is nothing to do; give --output"),
        (["train", "--config", "{tmp}/absent.yaml"], "--config: cannot read"),
        (["train", "--config"], "expected one argument"),
        (["plan", "--config", "{recipe}", "--no.such", "1"], "there is no such setting"),
        (["eval"], "MODEL"),
        (["eval", "{tmp}/absent"], "model: "),
        (["eval", "{tmp}"], "holds no readable checkpoint"),
        (["eval", "{run}", "--select", "first"], "invalid choice: 'first'"),
        (["eval", "{run}", "--weights", "ema"], "kept no average"),
        (["eval", "{run}", "--data.fake_classes", "5"], "its 5 classes are not the run's 7: class 5 is"),
        (["eval", "{run}", "--data.mean", "[0.1,0.1,0.1]"], "which is enforced"),
        (["eval", "{run}", "--data.squash", "true"], "which is enforced"),
        (["eval", "{run}", "--image_size", "10"], "nearest: 8 or 12"),
        (["eval", "{run}", "--nonsense"], "--nonsense: there is no such setting"),
        (["eval", "{run}", "--image_size", "0"], "--image_size: 0 is not valid"),
        (["eval", "{run}", "--optim.lr", "9"], "--optim.lr: it has no effect here; what has: --data"),
        (["eval", "{run}", "--model.image_size", "16"], "give --image_size"),
        (["eval", "{run}", "--output_dir", "{recipe}"], "is a file, not a folder"),
        (["train", "--config", "{recipe}", "--output_dir", "{recipe}"], "output_dir: "),
        (["train", "--config", "{recipe}", "--output_dir", "{recipe}/run"], "is a file, not a folder"),
        (["plan", "--config", "{recipe}", "--figure", "{recipe}/plan.png"], "--figure: "),
        (["plan", "--config", "{recipe}", "--figure", "{tmp}/plan.txt"], "plan.txt' is not valid: it must end in .png"),
        (["eval", "{run}", "--architecture", "vit"], "--architecture: 'vit' is not valid: it has no effect on"),
        (["eval", "{run}", "--seed", "1"], "--seed: 1 is not valid: it has no effect on"),
        (["eval", "{run}", "--class_names", "a", "b"], "--class_names: ['a', 'b'] is not valid: it has no effect on"),
        (["predict", "{run}"], "IMAGE"),
        (["predict", "{run}", "{tmp}/absent.png"], "absent.png"),
        (["predict", "{tmp}", "{tmp}/absent.png"], "holds no readable checkpoint"),
        (["predict", "{run}", "--device", "tpu", "{recipe}"], "device: 'tpu' is not valid"),
        (["predict", "{run}", "--device", "cpu", "{recipe}"], "recipe.yaml' is not a readable image"),
        (["diff", "{run}"], "RUN"),
        (["diff", "{run}", "{tmp}"], "is not a run folder"),
        (["diff", "{run}", "{broken}"], "optim.learnrate: there is no such setting"),
    ],
)
def test_wrong_words(
    words: list[str], expected: str, recipe: Path, tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.yaml").write_text("optim:\n  learnrate: 1\n")
    places = {"run": run, "recipe": recipe, "tmp": tmp_path, "broken": broken}
    assert main([word.format_map(places) for word in words]) == 2
    assert expected.format_map(places) in one_line(capsys)


def _no_permission(*_: Any, **options: Any) -> None:
    raise PermissionError(errno.EACCES, "Permission denied", options["dir"])


def test_a_run_that_nobody_may_write_to_is_not_evaluated_into_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vit.trained_runs.evaluate_checkpoint", None)  # it is refused before the work
    monkeypatch.setattr(tempfile, "TemporaryFile", _no_permission)
    copy = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("predictions"))
    assert main(["eval", str(copy)]) == 2
    assert f"--output_dir: '{copy}/predictions' is not valid: '{copy}' cannot be written to (P" in one_line(capsys)


@pytest.mark.parametrize("words", [["profile"], ["train"]])
def test_a_folder_that_nobody_may_write_to_is_named_before_the_work(
    words: list[str], recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", _no_permission)
    assert main([*words, "--config", str(recipe), "--output_dir", str(tmp_path / "new")]) == 2
    assert f"{str(tmp_path)!r} cannot be written to (Permission denied)" in one_line(capsys)


def test_a_file_that_nobody_may_write_is_named_before_the_work(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert main(["doctor", "RUN", "--output", str(recipe)]) == 2
    assert f"--output: {str(recipe)!r} is not valid: it exists and cannot be written to" in one_line(capsys)


@pytest.mark.parametrize("words", [["profile", "--output_dir", "new"], ["doctor", "RUN", "--output", "a.json"]])
def test_a_folder_that_may_not_be_entered_is_named_before_the_work(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of mode 000 and for anyone but root: to ask whether something is in it is an error."""
    closed = tmp_path / "closed"
    closed.mkdir()
    stat = Path.stat

    def refuse(path: Path, **options: Any) -> os.stat_result:
        if closed in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(tempfile, "TemporaryFile", _no_permission)
    assert main([*words[:-1], str(closed / words[-1])]) == 2
    assert f"{str(closed)!r} cannot be written to (Permission denied)" in one_line(capsys)


def test_a_file_that_is_there_needs_its_folder_too(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is replaced, or another is written beside it."""
    monkeypatch.setattr(tempfile, "TemporaryFile", _no_permission)
    assert main(["doctor", "RUN", "--output", str(recipe)]) == 2
    assert f"{str(recipe.parent)!r} cannot be written to (Permission denied)" in one_line(capsys)


def test_a_device_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    """A file is replaced in one step, and so would be the device."""
    assert main(["doctor", "RUN", "--output", os.devnull]) == 2
    assert "it is a device or a pipe; give a file" in one_line(capsys)


def test_a_damaged_checkpoint_is_named(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (folder,) = (tmp_path / "run" / "checkpoints").iterdir()
    (folder / "model.safetensors").write_bytes(b"short")
    assert main(["eval", str(folder)]) == 2
    assert f"{folder / 'model.safetensors'} is not what was written" in one_line(capsys)


def test_predict_says_that_weights_are_random(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "vit_tiny_patch16_224", "--device", "cpu", str(image)]) == 0
    assert capsys.readouterr().err == "vit_tiny_patch16_224: random weights; computed by vit\n"


def test_windows_is_refused_in_one_line() -> None:
    imported_there = "import os, vit; os.name = 'nt'; import vit.cli"
    done = subprocess.run([sys.executable, "-c", imported_there], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "vit: it runs on Linux and macOS; on Windows, install it in WSL\n")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vit {__version__}\n"


def test_predict_prints_the_five_likeliest(run: Path, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(run), "--device", "cpu", str(image), str(image)]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert len(lines) == 6 or len(lines) == 12
    assert lines[0] == str(image)
    assert said.err == ""
    shown = [line.split("%") for line in lines[1:6]]
    probabilities = [float(number) for number, _ in shown]
    assert probabilities == sorted(probabilities, reverse=True)
    assert len({name for _, name in shown}) == 5
    assert all(name.strip().startswith("pattern ") for _, name in shown)


def test_predict_takes_folders_lists_and_lines(
    run: Path, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tables too; a broken file costs its own line only, and the exit code says that there was one."""
    folder = tmp_path / "my photos"
    (folder / "deep").mkdir(parents=True)
    for name in ("b.png", "deep/a 🐶.png"):
        (folder / name).write_bytes(image.read_bytes())
    (tmp_path / "list.txt").write_text(f"my photos/b.png\n{image}\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{image}\n\n"))
    places = [str(folder), str(tmp_path / "list.txt"), "-"]
    assert main(["predict", str(run), "--device", "cpu", "--top", "2", "--format", "csv", *places]) == 0
    header, *rows = csv.reader(capsys.readouterr().out.splitlines())
    assert header == ["file", "rank", "class", "probability"]
    files = [folder / "b.png", folder / "deep" / "a 🐶.png", tmp_path / "my photos" / "b.png", image, image]
    assert [(row[0], row[1]) for row in rows] == [(str(file), rank) for file in files for rank in ("1", "2")]
    (folder / "broken.jpg").write_bytes(b"no image")
    assert main(["predict", str(run), "--device", "cpu", "--format", "json", "--top", "1", str(folder)]) == 2
    said = capsys.readouterr()
    (first, second) = json.loads(said.out)
    assert [Path(each["file"]).name for each in (first, second)] == ["b.png", "a 🐶.png"]
    assert first["classes"] == second["classes"]
    assert 0 < first["classes"][0]["probability"] <= 1
    broken, summary = said.err.splitlines()
    assert "broken.jpg' is not a readable image" in broken
    assert summary == "vit: 1 of 3 images could not be read"


def test_results_on_other_images_do_not_overwrite(run: Path, tmp_path: Path) -> None:
    """Two folders of the same files' names keep results of their own, which say where they are from."""
    classes = {f"pattern {number}": 3 for number in range(7)}
    for place in ("one", "two"):
        words = [
            "--data",
            str(make_folder(tmp_path / place / "photos", classes)),
            "--output_dir",
            str(tmp_path / "out"),
        ]
        assert main(["eval", str(run), *words, "--data.test_fraction", "1"]) == 0
    records = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("imagefolder-photos-*_best_auto.json")]
    assert {record["data"]["root"] for record in records} == {str(tmp_path / p / "photos") for p in ("one", "two")}
    assert len({record["data"]["fingerprint"] for record in records}) == 1
    header, *rows = csv.reader(next((tmp_path / "out").glob("*.csv")).read_text().splitlines())
    assert header == ["file", "true", "predicted", "probability"]
    assert len(rows) == 21
    assert {row[0] for row in rows} == {f"{name}/{number:03d}.png" for name in classes for number in range(3)}
    right = [row[1] == row[2] for row in rows]
    assert right == sorted(right), "mistakes first"
    for kind in (True, False):
        sure = [float(row[3]) for row, each in zip(rows, right, strict=True) if each == kind]
        assert sure == sorted(sure, reverse=True)


def test_eval_prints_and_stores_the_metrics(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--output_dir", str(tmp_path)]) == 0
    said = capsys.readouterr()
    metrics = json.loads(said.out)
    summary = json.loads((run / "summary.json").read_text())
    assert metrics["n_seen"] == metrics["n_total"] == 10
    assert metrics["top1"] == summary["test.top1"]
    assert {path.suffix for path in tmp_path.iterdir()} == {".npz", ".json", ".png", ".csv"}
    interval, place = said.err.splitlines()
    assert re.fullmatch(r"test top-1 \S+% of 10 images \(95 % interval \S+% to \S+%\)", interval)
    written = json.loads(Path(place.removeprefix("see ")).read_text())
    assert written["top1"] == metrics["top1"], "the file of the metrics, among all that are written"
    assert "file" not in metrics


def test_train_tells_where_the_run_is(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    monkeypatch.setattr("vit.tasks.classification.analysis.draw_inside", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--config", str(recipe)]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["model", "images", "steps", "device", "run"]
    assert re.fullmatch(r"epoch 1 of 1: loss \S+, val.top1 \S+%, rate \S+, \S+ images/s, .+ in all", lines[5])
    assert "\r" not in said.out + said.err
    assert said.err == ""
    top1, low, high = re.fullmatch(
        r"runs/recipe: test top-1 (\S+)% of 10 images \(95 % interval (\S+)% to (\S+)%\), .+ of training", lines[6]
    ).groups()  # type: ignore[union-attr]
    assert float(low) < float(top1) < float(high)
    assert lines[7:] == [
        "evaluated with the weights of the last epoch, the best on the validation set",
        "model card: runs/recipe/README.md; pictures: runs/recipe/figures",
        "next: vit predict runs/recipe IMAGE…   vit analyze runs/recipe",
    ]
    assert (tmp_path / "runs" / "recipe" / "summary.json").is_file()
    assert main(["train", "--config", str(recipe)]) == 2
    assert "holds a run already" in one_line(capsys)
    assert main(["train", "--resume", "runs/recipe"]) == 0
    said = capsys.readouterr()
    assert said.out == lines[6].replace("runs/recipe:", "runs/recipe was finished already:") + "\n"
    assert said.err == ""
    for words in (["--output_dir", "runs/recipe"], ["--output-dir=runs/recipe"]):
        assert main(["train", "--resume", *words]) == 0, "with its own settings, not those of the digits"
        assert capsys.readouterr().out == said.out
    assert main(["train", "--config", str(recipe), "--resume", "--optim.lr", "1"]) == 2
    assert "optim.lr: 1.0 is not valid: the run in" in one_line(capsys)
    assert main(["diff", "runs/recipe", "runs/recipe"]) == 0


def test_a_resume_that_names_no_run_begins_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume"]) == 2
    assert (
        one_line(capsys)
        == "vit: --resume: there is no run in 'runs/digits_vit'; name the one to continue: --resume RUN"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_which_nothing_was_trained_is_begun_again(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was left by an image that cannot be decoded."""
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    monkeypatch.setattr("vit.tasks.classification.analysis.draw_inside", lambda *_: None)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(recipe.read_text())
    (run / "metrics.jsonl").touch()
    assert main(["train", "--config", str(recipe), "--output_dir", str(run), "--lr", "1e-4"]) == 0
    assert "lr: 0.0001" in (run / "config.yaml").read_text()


def test_what_shrank_is_not_said_before_a_refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(dump_run_config(tiny(CONFIG, train={"epochs": 4}, optim={"warmup_epochs": 2.0}), {}))
    words = ["train", "--config", str(recipe), "--output_dir", str(tmp_path / "run"), "--train.epochs", "1"]
    assert main([*words, "--data.fake_images", "2"]) == 2
    printed = capsys.readouterr()
    assert "shrunk" not in printed.out + printed.err
    assert printed.err.count("\n") == 1


def test_a_run_of_fewer_epochs_says_what_shrank_and_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    monkeypatch.setattr("vit.tasks.classification.analysis.draw_inside", lambda *_: None)
    recipe, run = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(dump_run_config(tiny(CONFIG, train={"epochs": 4}, optim={"warmup_epochs": 2.0}), {}))
    words = ["train", "--config", str(recipe), "--output_dir", str(run), "--train.epochs", "1"]
    assert main(words) == 0
    assert re.search("shrunk +optim.warmup_epochs to 0.5; in proportion to train.epochs\n", capsys.readouterr().out)
    assert "  warmup_epochs: 0.5  # shrunk with train.epochs\n" in (run / "config.yaml").read_text()
    assert main([*words, "--resume"]) == 0
    assert main(["train", "--config", str(run / "config.yaml"), "--resume"]) == 0


def test_a_run_is_continued_by_its_folder_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to more epochs; the warm-up of the run, shrunk when it began, stays its own."""
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    monkeypatch.setattr("vit.tasks.classification.analysis.draw_inside", lambda *_: None)
    run, long = tmp_path / "run", tmp_path / "long.yaml"
    long.write_text(dump_run_config(tiny(CONFIG, train={"epochs": 4}, optim={"warmup_epochs": 3.0}), {}))
    words = ["train", "--config", str(long), "--output_dir", str(run)]
    assert main([*words, "--epochs", "2"]) == 0
    settings = (run / "config.yaml").read_text()
    assert main(["train", "--resume", str(run)]) == 0
    assert (run / "config.yaml").read_text() == settings, "also where each setting came from"
    capsys.readouterr()
    for wrong, said in {
        (
            "--epochs",
            "1",
        ): f"train.epochs: 1 is not valid: the run in '{run}' has optim.warmup_epochs 1.5; take 2 or more",
        ("--lr", "1"): "optim.lr: 1.0 is not valid: the run in",
        ("--output_dir", str(tmp_path)): "--output_dir: ",
        ("--config", str(long)): f"--config: it has no effect with --resume {run}",
    }.items():
        assert main(["train", "--resume", str(run), *wrong]) == 2
        assert said in one_line(capsys)
    assert main(["train", "--resume", str(tmp_path)]) == 2
    assert "is not a run folder (it has no config.yaml)" in one_line(capsys)
    assert main([*words, "--resume"]) == 2
    said = one_line(capsys)
    assert said.startswith("vit: train.epochs: 4 is not valid: the run in")
    assert "was started with 2, and optim.warmup_epochs would change with it; `vit train --resume" in said
    assert main(["train", "--resume", str(run), "--epochs", "4"]) == 0
    said = capsys.readouterr().err
    assert "train.epochs: 4 instead of 2; from step 6 on the learning rate is that of the longer run: 0.00271" in said
    assert read_metrics(run)[-1]["step"] == 12
    rates = {record["step"]: record["lr"] for record in read_metrics(run) if "lr" in record}
    assert rates[7] == pytest.approx(3e-3 * 0.5 * (1 + math.cos(math.pi * 0.5 / 2.5)))
    assert json.loads((run / "summary.json").read_text())["steps"] == 12
    assert "  epochs: 4  # command line\n" in (run / "config.yaml").read_text()


def test_a_run_may_end_sooner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in its second epoch of four, it is continued to two: the rest has the rates of two."""
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    monkeypatch.setattr("vit.tasks.classification.analysis.draw_inside", lambda *_: None)
    run, recipe = tmp_path / "run", tmp_path / "recipe.yaml"
    config = tiny(CONFIG, train={"epochs": 4}, optim={"warmup_epochs": 0.5})
    recipe.write_text(dump_run_config(config, {}))
    with monkeypatch.context() as patch:
        at_step(patch, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert main(["train", "--config", str(recipe), "--output_dir", str(run)]) == 143
    capsys.readouterr()
    assert main(["train", "--resume", str(run), "--epochs", "1"]) == 2
    said = f"train.epochs: 1 is not valid: the run in '{run}' has been trained for 1.667 of 4 epochs; take more"
    assert said in one_line(capsys)
    assert main(["train", "--resume", str(run), "--epochs", "2"]) == 0
    said = capsys.readouterr().err
    assert "train.epochs: 2 instead of 4; from step 5 on the learning rate is that of the shorter run: " in said
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["epochs"], summary["steps"]) == (2, 6)
    number = summary["train.n_total"]
    seen = [epoch * number + images for epoch in range(2) for images in (0, 16, 32)]
    long, short = (
        [learning_rate(before, epochs * number, number / 2, config.optim) for before in seen] for epochs in (4, 2)
    )
    rates = [record["lr"] for record in read_metrics(run) if "lr" in record]
    assert rates == pytest.approx([*long[:5], *short[5:]])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(28, "No space left on device", "runs/x"), 1),
        (NonFinite("the loss is not finite at step 3"), 1),
        (MemoryError("Unable to allocate 3 GiB"), 1),
        (MemoryError(), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_what_is_not_the_users_fault(
    error: BaseException,
    code: int,
    recipe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(loop, "train", fail)
    assert main(["train", "--config", str(recipe), "--output_dir", str(tmp_path)]) == code
    said = "'runs/x': No space left on device" if isinstance(error, OSError) else str(error)
    assert said in one_line(capsys)


def test_too_little_memory_is_one_line_and_other_defects_are_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr("vit.settings.resolve_run", lambda *_: torch.empty(2**60))
    assert main(["plan"]) == 1
    assert re.fullmatch(r"vit: not enough memory: .*\n", capsys.readouterr().err)
    monkeypatch.setattr("vit.settings.resolve_run", lambda *_: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        main(["plan"])


@pytest.mark.parametrize(
    "message",
    ["No working C++ compiler found", "Failed to find C compiler. Please specify", "Cannot find a working triton"],
)
def test_a_missing_compiler_is_one_line(
    message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch's inductor and Triton say it, behind much that does not matter."""
    import torch

    def without_compiler(*_: Any) -> Any:
        raise RuntimeError("x" * 300 + f"\n{message}")

    compiled = torch.compile(lambda x: x + 1, backend=without_compiler)
    monkeypatch.setattr("vit.settings.resolve_run", lambda *_: compiled(torch.ones(2)))
    assert main(["plan"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("vit: torch.compile has no compiler on this machine: ")
    assert message in said
    assert said.count("\n") == 1


def test_a_full_disk_leaves_the_last_good_checkpoint(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vit.runs.writing import flush

    saves: list[Path] = []

    def full(path: Path) -> None:
        if path.name == "state.json":
            saves.append(path)
            if len(saves) == 2:
                raise OSError(28, "No space left on device", str(path))
        flush(path)

    monkeypatch.setattr("vit.runs.checkpoints.flush", full)
    words = ["train", "--config", str(recipe), "--output_dir", str(tmp_path), "--train.save_every_steps", "2"]
    assert main(words) == 1
    assert "No space left on device" in one_line(capsys)
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-00000002"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_has_the_shells_code(
    number: signal.Signals,
    code: int,
    recipe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_step(monkeypatch, 1, lambda: os.kill(os.getpid(), number))
    assert main(["train", "--config", str(recipe), "--output_dir", str(tmp_path)]) == code
    assert f"stopped by {number.name} after step 2" in one_line(capsys)


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "vit train [--config FILE]" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["train", "eval", "predict", "plan", "diff", "profile"])
def test_help_of_a_command_is_printed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: vit {command}")


@pytest.mark.parametrize(
    "words",
    [*((name,) for name in COMMANDS), ("compare", "--train"), ("compare", "--finetune"), ("eval", "--finetune")],
)
def test_the_help_of_every_command_says_what_its_memory_grows_with(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """As docs/performance.md promises."""
    with pytest.raises(SystemExit) as left:
        main([*words, "--help"])
    assert left.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    about = said.partition("positional arguments:")[0].partition(" options:")[0]
    assert re.search(r"Memory( of every process)?: |Listing takes 1 kB a file", about)


def test_a_defect_shows_its_traceback(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("ours")

    monkeypatch.setattr(loop, "train", fail)
    with pytest.raises(AssertionError, match="ours"):
        main(["train", "--config", str(recipe)])


def test_the_doors_are_the_command(tmp_path: Path) -> None:
    """One process of its own: `train.py` with a wrong key."""
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "train.py", "--output_dir", str(tmp_path), "--optim.learnrate", "3"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("vit: --optim.learnrate: there is no such setting")


def test_the_help_of_train_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """By section, with its default, and what it is where the dataclass says so."""
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = capsys.readouterr().out
    listed = re.findall(r"^  --(\S+) ", said, re.MULTILINE)
    assert set(flat_settings(ClassificationRun())) <= set(listed)
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "--optim.lr 0.001 Peak learning rate at `data.batch_size` images per step" in lines
    assert "--data.download false Fetch the data set into `data.root` where it is missing" in lines
    assert any(line.endswith("{adamw, sgd, lamb, muon}") for line in lines)
    assert "…" not in said, "nothing is cut"
    assert any(line.startswith("--model.pooling null ") for line in lines)
    assert any(line.startswith("--augment.scale [0.08,1.0]") for line in lines)
    assert max(map(len, said.splitlines())) <= 160


def test_the_whole_help_of_train_says_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["train", "--help-all"])
    assert left.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "`bicubic_corners`: corner to corner (torchvision)" in said, "beyond the first sentence"
    assert "ResNets: the first layers." in said


def test_the_help_of_a_comparison_by_training(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--train", "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: vit compare --train")


def test_a_full_disk_behind_the_output_is_named(tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    Image.new("RGB", (8, 8)).save(image)
    words = ["predict", "vit_tiny_patch16_32", str(image), "--device", "cpu"]
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "vit.cli", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "vit: standard output: what is printed could not be written: No space left on device\n"


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    """As `vit predict … | head -1` closes the pipe: no message, and none when Python ends."""
    image = tmp_path / "a.png"
    Image.new("RGB", (8, 8)).save(image)
    words = ["predict", "vit_tiny_patch16_32", str(image), "--device", "cpu"]
    command = [sys.executable, "-m", "vit.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode()
    assert process.returncode == 0
    assert "roken" not in said
    assert "Traceback" not in said
