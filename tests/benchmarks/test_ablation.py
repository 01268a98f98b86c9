"""Ingredients of a recipe: which variants there are, how long they may train, and what is said of them."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from benchmarks import epochs
from benchmarks.__main__ import main
from benchmarks.ablation import Ablation, ablate, effects, table
from vit.settings import ResolvedRun
from vit.tasks.classification.config import ClassificationRun
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
    runs = [
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
    file.write_text("[1, 2")
    assert main(words) == 2
    assert "it is no result of an ablation" in capsys.readouterr().err
    assert file.read_text() == "[1, 2"


def test_an_ablation_is_kept_after_every_run_and_continued_from_its_file_alone(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 8

    def train(config: ClassificationRun, *_: object, **__: object) -> dict[str, Any]:
        nonlocal left
        if not left:
            raise Stopped(signal.SIGTERM, 3, "")
        left -= 1
        return {"seed": config.seed, "test.top1": 0.5 + left / 100, "epochs": 2}

    monkeypatch.setattr("benchmarks.ablation.fitting_epochs", lambda *_: (2, 30.0))
    monkeypatch.setattr("vit.experiments.planned_runs.train", train)
    ablation, file = Ablation.read(recipe), tmp_path / "result.json"
    with pytest.raises(Stopped):
        ablate(ablation, 1, [0, 1], tmp_path / "runs", file, print)
    kept = json.loads(file.read_text())
    assert [(row["variant"], row["seed"]) for row in kept["runs"][5:]] == [
        ("best - averaging", 0),
        ("plain", 1),
        ("plain + mimetic", 1),
    ]
    assert {tuple(effect["seeds"]) for effect in kept["effects"]} == {(0,)}  # the second is not whole yet
    left = 4
    result = ablate(ablation, 1, [0, 1], tmp_path / "elsewhere", file, print)  # the four that are left
    assert json.loads(file.read_text()) == result
    assert left == 0
    assert result["runs"][:8] == kept["runs"]
    assert {tuple(effect["seeds"]) for effect in result["effects"]} == {(0, 1)}
    assert {tuple(seconds) for seconds in result["seconds_an_epoch"].values()} == {(30.0,) * 3}


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
