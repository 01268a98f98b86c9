"""Ingredients of a recipe: which variants there are, how long they may train, and what is said of them."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import epochs
from benchmarks.__main__ import main
from benchmarks.ablation import Ablation, ablate, effects
from benchmarks.ablation_table import table
from vit.settings import ResolvedRun
from vit.tasks.classification.config import ClassificationRun
from vit.tasks.task import NonFinite
from vit.training.interruption import Stopped

FILE = """
config: digits_vit
settings: {model.width: 16, model.depth: 1, model.num_heads: 2, optim.warmup_epochs: 0, data.workers: 0}
ingredients:
  mimetic: {model.init: mimetic}
  averaging: {train.ema_decay: 0.9}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "recipe.yaml"
    file.write_text(FILE)
    return file


def test_every_ingredient_is_added_to_the_plain_recipe_and_left_out_of_the_best_one(recipe: Path) -> None:
    found = Ablation.read(recipe)
    assert found.variants() == {
        "plain": (),
        "plain + mimetic": ("mimetic",),
        "plain + averaging": ("averaging",),
        "best": ("mimetic", "averaging"),
        "best - mimetic": ("averaging",),
        "best - averaging": ("mimetic",),
    }
    assert found.settings_with(("mimetic",)) == {**found.settings, "model.init": "mimetic"}


def test_an_ingredient_that_the_best_recipe_lacks_is_added_to_it(recipe: Path) -> None:
    recipe.write_text(FILE + "best: [averaging]\n")
    found = Ablation.read(recipe)
    assert list(found.variants().items())[3:] == [
        ("best", ("averaging",)),
        ("best + mimetic", ("averaging", "mimetic")),
        ("best - averaging", ()),
    ]
    assert list(found.pairs()) == [
        ("mimetic", "plain + mimetic", "plain"),
        ("mimetic", "best + mimetic", "best"),
        ("averaging", "plain + averaging", "plain"),
        ("averaging", "best", "best - averaging"),
    ]


def test_without_a_best_recipe_ingredients_are_only_added(recipe: Path) -> None:
    recipe.write_text(FILE + "best: []\n")
    found = Ablation.read(recipe)
    assert list(found.variants()) == ["plain", "plain + mimetic", "plain + averaging"]
    assert [pair[1:] for pair in found.pairs()] == [("plain + mimetic", "plain"), ("plain + averaging", "plain")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("config: digits_vit", "ingredients: {} is not valid"),
        ("ingredients: {a: {model.init: mimetic}}", "config: None is not valid"),
        ("config: digits_vit\ningredients: {16: {model.width: 16}}", "ingredients: .* is not valid: name at least one"),
        ("config: digits_vit\nsettings: [1]\ningredients: {a: {model.init: mimetic}}", r"settings: \[1\] is not valid"),
        (
            FILE + "best: [mimetik]",
            r"best: \['mimetik'\] is not valid: it is a list of ingredients: mimetic, averaging",
        ),
        (FILE + "more: 1", r"FILE: .*it has no section \['more'\]"),
    ],
)
def test_a_file_without_a_part_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        Ablation.read(tmp_path / "recipe.yaml")


def test_effects_are_paired_by_seed() -> None:
    found = Ablation("digits_vit", {}, {"a": {}}, ["a"])
    top1 = {"plain": (0.5, 0.7), "plain + a": (0.6, 0.8), "best - a": (0.5, 0.7), "best": (0.6, 0.9)}
    runs: list[dict[str, Any]] = [
        {"variant": name, "seed": seed, "test.top1": value, "epochs": 3}
        for name, values in top1.items()
        for seed, value in enumerate(values)
    ]
    added, removed = effects(found, runs)
    assert added["effect"] == pytest.approx(0.1)
    assert added["interval"] == pytest.approx([0.1, 0.1])
    assert removed["effect"] == pytest.approx(0.15)
    half = 12.7062 * 0.05  # t of one degree of freedom × standard error
    assert removed["interval"] == pytest.approx([0.15 - half, 0.15 + half], abs=1e-4)
    lines = table({"runs": runs, "effects": [added, removed]}).splitlines()
    assert lines[2] == "| plain | 3 | 60.00 ± 14.14 % |  |"
    assert lines[3] == "| plain + a | 3 | 70.00 ± 14.14 % | +10.00 points (+10.0 to +10.0) |"


def test_a_whole_ablation_is_measured_written_and_not_repeated(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    timed = []

    def measure(resolved: ResolvedRun, folder: Path) -> float:
        timed.append(own(resolved, folder))
        return 30.0

    own = epochs.seconds_per_epoch
    monkeypatch.setattr(epochs, "seconds_per_epoch", measure)
    file = tmp_path / "result.json"
    words = ["ablation", str(recipe), "--minutes", "1.1", "--seeds", "0", "--folder", str(tmp_path / "runs")]
    words += ["--output", str(file)]
    assert main(words) == 0
    result = json.loads(file.read_text())
    assert len(timed) == 18  # each three times
    assert min(timed) > 0
    assert [row["epochs"] for row in result["runs"]] == [2] * 6
    assert {effect["ingredient"] for effect in result["effects"]} == {"mimetic", "averaging"}
    shutil.rmtree(tmp_path / "runs")  # as on another machine
    monkeypatch.setattr(
        "vit.experiments.planned_runs.train", lambda *_: pytest.fail("a finished run was trained again")
    )
    assert main(words) == 0
    assert len(timed) == 18  # each three times
    assert "| best - averaging | 2 |" in capsys.readouterr().out
    assert main([*words, "--at_once", "2"]) == 2
    assert re.search("--at_once: 2 is not valid: the ablation in .* has 1", capsys.readouterr().err)
    (tmp_path / "runs" / "recipe" / "plain" / "seed0").mkdir(parents=True)
    (tmp_path / "runs" / "recipe" / "plain" / "seed0" / "config.yaml").touch()
    file.unlink()
    assert main(words) == 2
    assert "it holds runs of an ablation that --output does not tell of" in capsys.readouterr().err
    assert len(timed) == 18


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--minutes", "inf"), "--minutes: inf is not valid"),
        (("--minutes", "1", "--seeds", "0", "-1"), "--seeds: -1 is not valid"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_timed(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert main(["ablation", str(recipe), "--folder", str(tmp_path / "runs"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*.json"))


def test_another_task_is_refused_before_anything_is_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs, "seconds_per_epoch", lambda *_: pytest.fail("its steps were timed"))
    file = tmp_path / "ablation.yaml"
    file.write_text("config: kernel_regression\ningredients: {points: {data.points_seed: 1}}\n")
    assert main(["ablation", str(file), "--minutes", "1", "--folder", str(tmp_path / "runs")]) == 2
    assert "config: 'kernel_regression' is not valid: its task is" in capsys.readouterr().err


@pytest.fixture
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> list[ClassificationRun]:
    """Runs that train nothing, and what they would have trained; SIGTERM arrives when `STOP` runs are over."""
    trained: list[ClassificationRun] = []

    def train(config: ClassificationRun, *_: object, **__: object) -> dict[str, Any]:
        if len(trained) == STOP:
            trained.clear()
            raise Stopped(signal.SIGTERM, 3, "")
        trained.append(config)
        return {"seed": config.seed, "test.top1": 0.5 + len(trained) / 100, "epochs": 2}

    monkeypatch.setattr("benchmarks.ablation.fitting_epochs", lambda *_: (2, 30.0))
    monkeypatch.setattr("vit.experiments.planned_runs.train", train)
    return trained


STOP = 8


def test_an_ablation_is_kept_after_every_run_and_continued_from_its_file_alone(
    recipe: Path, tmp_path: Path, fake_runs: list[ClassificationRun]
) -> None:
    ablation, file = Ablation.read(recipe), tmp_path / "result.json"
    with pytest.raises(Stopped):
        ablate(ablation, 1, [1, 0, 0], tmp_path / "runs", file, print)
    kept = json.loads(file.read_text())
    assert [(row["variant"], row["seed"]) for row in kept["runs"][5:]] == [
        ("best - averaging", 0),
        ("plain", 1),
        ("plain + mimetic", 1),
    ]
    assert {tuple(effect["seeds"]) for effect in kept["effects"]} == {(0,)}  # the second is not whole yet
    assert "| plain | 2 | 51.00 % |" in table(kept)
    result = ablate(ablation, 1, [0, 1], tmp_path / "elsewhere", file, print)
    assert json.loads(file.read_text()) == result
    assert len(fake_runs) == 4
    assert result["runs"][:8] == kept["runs"]
    assert {tuple(effect["seeds"]) for effect in result["effects"]} == {(0, 1)}
    assert {tuple(seconds) for seconds in result["seconds_an_epoch"].values()} == {(30.0,) * 3}
    assert result["timed_on"]["threads"] == torch.get_num_threads()


def test_a_variant_that_diverges_has_no_accuracy_and_stops_no_other(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_runs: list[ClassificationRun]
) -> None:
    ablation, file = Ablation.read(recipe), tmp_path / "result.json"
    train = "vit.experiments.planned_runs.train"
    own = import_module("vit.experiments.planned_runs").train

    def diverging(config: ClassificationRun, folder: Path, **named: Any) -> dict[str, Any]:
        if folder.parts[-2:] == ("plain_mimetic", "seed0"):
            raise NonFinite("the loss is not finite at step 3")
        return own(config, folder, **named)

    monkeypatch.setattr(train, diverging)
    result = ablate(ablation, 1, [0], tmp_path / "runs", file, print)
    assert len(fake_runs) == 5
    row = result["runs"][1]
    assert {name: value for name, value in row.items() if value is not None} == {
        "variant": "plain + mimetic",
        "seed": 0,
        "epochs": 2,
        "diverged": True,
    }
    told = {effect["variant"] for effect in result["effects"]}
    assert told == {"plain + averaging", "best - mimetic", "best - averaging"}
    assert "| plain + mimetic | 2 | loss not finite with seed 0 |  |" in table(result)
    assert ablate(ablation, 1, [0], tmp_path / "runs", file, print) == result
    assert len(fake_runs) == 5


@pytest.mark.usefixtures("fake_runs")
@pytest.mark.parametrize(("device", "expected"), [("cpu", "cpu"), ("auto", "cuda")])
def test_the_machine_that_is_told_is_the_device_of_the_recipe(
    device: str, expected: str, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accelerator(asked: str, _: str) -> SimpleNamespace:
        return SimpleNamespace(device=torch.device("cpu" if asked == "cpu" else "cuda"))

    recipe.write_text(FILE.replace("settings: {", f"settings: {{device: {device}, "))
    monkeypatch.setattr("benchmarks.ablation.make_accelerator", accelerator)
    monkeypatch.setattr("benchmarks.ablation.machine", lambda kind: {"device": kind})
    result = ablate(Ablation.read(recipe), 1, [0], tmp_path / "runs", tmp_path / "result.json", print)
    assert result["timed_on"] == {"device": expected}


def test_a_seed_between_others_is_put_between_them_and_a_process_beside_loses_nothing(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_runs: list[ClassificationRun]
) -> None:
    recipe.write_text(FILE.replace("  averaging: {train.ema_decay: 0.9}\n", ""))
    ablation, file = Ablation.read(recipe), tmp_path / "result.json"
    ablate(ablation, 1, [2], tmp_path / "runs", file, print)
    fake_runs.clear()
    beside = json.loads(file.read_text())
    train = "vit.experiments.planned_runs.train"
    own = import_module("vit.experiments.planned_runs").train

    def train_beside(*given: Any, **named: Any) -> dict[str, Any]:
        monkeypatch.setattr(train, own)
        row = beside["runs"][0] | {"seed": 1}
        file.write_text(json.dumps(beside | {"runs": [row, *beside["runs"]]}))
        return own(*given, **named)

    monkeypatch.setattr(train, train_beside)
    result = ablate(ablation, 1, [0], tmp_path / "runs", file, print)
    assert [row["seed"] for row in result["runs"]] == [0, 0, 0, 0, 1, 2, 2, 2, 2]


def test_a_wrong_setting_of_an_ingredient_is_said_before_anything_is_timed(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe.write_text(FILE.replace("model.init", "model.inti"))
    monkeypatch.setattr("benchmarks.ablation.fitting_epochs", lambda *_: pytest.fail("a variant was timed"))
    with pytest.raises(ValueError, match=r"--model.inti: there is no such setting; did you mean 'model.init'"):
        ablate(Ablation.read(recipe), 1, [0], tmp_path / "runs", tmp_path / "result.json", print)
    assert not (tmp_path / "result.json").exists()


def test_times_that_another_machine_has_begun_are_taken_anew(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_runs: list[ClassificationRun]
) -> None:
    def interrupted(*_: object) -> tuple[int, float]:
        raise KeyboardInterrupt

    seconds = iter([0.1])
    monkeypatch.setattr("benchmarks.ablation.fitting_epochs", lambda *_: (2, next(seconds, None) or interrupted()))
    ablation, file = Ablation.read(recipe), tmp_path / "result.json"
    with pytest.raises(KeyboardInterrupt):
        ablate(ablation, 1, [0], tmp_path / "runs", file, print)
    begun = json.loads(file.read_text())
    assert begun["seconds_an_epoch"] == {"plain": [0.1]}
    file.write_text(json.dumps(begun | {"timed_on": begun["timed_on"] | {"device": "another"}}))
    monkeypatch.setattr("benchmarks.ablation.fitting_epochs", lambda *_: (2, 30.0))
    result = ablate(ablation, 1, [0], tmp_path / "runs", file, print)
    assert result["seconds_an_epoch"]["plain"] == [30.0] * 3
    assert len(fake_runs) == 6


def test_runs_that_were_finished_before_their_result_was_written_are_in_it(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_runs: list[ClassificationRun]
) -> None:
    ablation, file = Ablation.read(recipe), tmp_path / "result.json"
    monkeypatch.setattr(
        "vit.experiments.planned_runs._finished", lambda _: {"seed": 0, "test.top1": 0.5, "seconds": 1.0}
    )
    ablate(ablation, 1, [0], tmp_path / "runs", file, print)
    assert fake_runs == []
    assert [row["test.top1"] for row in json.loads(file.read_text())["runs"]] == [0.5] * 6


@pytest.mark.usefixtures("fake_runs")
def test_another_recipe_of_the_same_name_is_refused(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("model: {width: 16}")
    recipe.write_text(FILE.replace("digits_vit", str(tmp_path / "own.yaml")).replace("model.width: 16, ", ""))
    ablation, file = Ablation.read(recipe), tmp_path / "result.json"
    ablate(ablation, 1, [0], tmp_path / "runs", file, print)
    (tmp_path / "own.yaml").write_text("model: {width: 32}")
    with pytest.raises(ValueError, match=r"model.width: 32 is not valid: the ablation in .* has 16"):
        ablate(ablation, 1, [0, 1], tmp_path / "runs", file, print)


def test_a_setting_that_came_after_the_file_is_compared_as_its_default(
    recipe: Path, tmp_path: Path, fake_runs: list[ClassificationRun]
) -> None:
    (tmp_path / "own.yaml").write_text("{}")
    recipe.write_text(FILE.replace("digits_vit", str(tmp_path / "own.yaml")))
    ablation, file = Ablation.read(recipe), tmp_path / "result.json"
    ablate(ablation, 1, [0], tmp_path / "runs", file, print)
    older = json.loads(file.read_text())
    del older["plain"]["train.label_smoothing"]
    file.write_text(json.dumps(older))
    (tmp_path / "own.yaml").write_text("train: {label_smoothing: 0.1}")
    with pytest.raises(ValueError, match=r"train.label_smoothing: 0.1 is not valid: the ablation in .* has 0.0"):
        ablate(ablation, 1, [0, 1], tmp_path / "runs", file, print)
    fake_runs.clear()
    (tmp_path / "own.yaml").write_text("{}")
    assert len(ablate(ablation, 1, [0, 1], tmp_path / "runs", file, print)["runs"]) == 2 * len(ablation.variants())


@pytest.mark.usefixtures("fake_runs")
@pytest.mark.parametrize(
    "broken",
    [
        lambda _: "[1, 2",
        lambda _: "[]",
        lambda _: "{}",
        lambda stored: json.dumps({key: value for key, value in stored.items() if key != "timed_on"}),
        lambda stored: json.dumps(stored | {"runs": {}}),
        lambda stored: json.dumps(stored | {"runs": [{**stored["runs"][0], "test.top1": None}]}),
        lambda stored: json.dumps(stored | {"seconds_an_epoch": {"plain": [0.0]}}),
        lambda stored: json.dumps(stored | {"seconds_an_epoch": {"plain": ["1"]}}),
    ],
)
def test_a_file_of_something_else_is_refused_and_kept(
    recipe: Path, tmp_path: Path, broken: Callable[[dict[str, Any]], str]
) -> None:
    ablation, file = Ablation.read(recipe), tmp_path / "result.json"
    text = broken(ablate(ablation, 1, [0], tmp_path / "runs", file, print))
    file.write_text(text)
    with pytest.raises(ValueError, match=r"--output: .* is not valid: it is no result of an ablation"):
        ablate(ablation, 1, [0], tmp_path / "runs", file, print)
    assert file.read_text() == text


@pytest.mark.slow
def test_two_variants_are_timed_and_trained_at_once(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(FILE.replace("  averaging: {train.ema_decay: 0.9}\n", ""))
    words = ["ablation", str(recipe), "--minutes", "0.01", "--seeds", "0", "--at_once", "2"]
    folder, output = tmp_path / "runs", tmp_path / "result.json"
    assert main([*words, "--folder", str(folder), "--output", str(output)]) == 0
    result = json.loads(output.read_text())
    assert result["at_once"] == 2
    assert len(result["runs"]) == 4
    assert {len(seconds) for seconds in result["seconds_an_epoch"].values()} == {3}
    assert (folder / "recipe" / "plain" / "seed0" / "train.log").is_file()
