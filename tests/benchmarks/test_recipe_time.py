"""Trainings of several recipes, timed by some of their steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine_load, recipe_time
from benchmarks.__main__ import main

SMALL = (
    "--model.width=16 --model.num_heads=2 --data.batch_size=32 --data.workers=0 --train.epochs=6 "
    "--optim.warmup_epochs=0 --device=cpu --train.precision=fp32"
)
RECIPES = [f"digits_vit {SMALL} --model.depth={depth}" for depth in (1, 12)]


def test_recipes_are_timed_by_their_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_load, "MOST_OTHER_LOAD", 1.0)  # tests run beside one another
    output = tmp_path / "result.json"
    assert main(["recipes", *RECIPES, "--turns", "1", "--output", str(output)]) == 0
    one, other = json.loads(output.read_text())["rows"]
    assert [one["recipe"], other["recipe"]] == RECIPES
    assert one["precision"] == "fp32"
    assert other["seconds_per_epoch"][0] > 1.5 * one["seconds_per_epoch"][0]  # twelve blocks against one


def test_steps_are_of_the_processor_on_any_machine() -> None:
    assert recipe_time._resolve("digits_vit").device == "cpu"


def test_turns_are_kept_apart_and_a_busy_one_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {RECIPES[0]: [1.0, 2.0], RECIPES[1]: [3.0, 4.0, 8.0]}
    busy = {3.0}

    class Load:
        def refuse(self, own: float = 0.0) -> float:  # noqa: ARG002
            if busy and last[-1:] == [3.0]:
                busy.clear()
                raise machine_load.BusyMachine("other processes took 50% of this machine")
            return 0.01

    last: list[float] = []

    def in_a_process(recipe: str, *timed: str) -> dict[str, Any]:
        if not timed:
            return {"precision": "fp32"}
        last.append(taken[recipe].pop(0))
        return {"seconds": last[-1]}

    monkeypatch.setattr(recipe_time, "Load", Load)
    monkeypatch.setattr(recipe_time, "_SAMPLE", 0.0)
    monkeypatch.setattr(recipe_time, "_in_a_process", in_a_process)
    told: list[str] = []
    one, other = recipe_time.recipe_times(RECIPES, 2, told.append)["rows"]
    assert one["seconds_per_epoch"] == [1.0, 2.0]
    assert other["seconds_per_epoch"] == [4.0, 8.0]
    assert other["times_the_first"] == {"median": 4.0, "lower": 4.0, "upper": 4.0}
    assert other["minutes"] == pytest.approx(6.0 * 6 / 60)
    assert sum("measured again" in line for line in told) == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["digits_vit", "--turns", "0"], "--turns: 0 is not valid: it must be at least 1"),
        (["digits_vit", "digits_vit"], "the recipes must differ"),
        (["digits_vit", "digits_vit --model.width 3.5"], "model.width"),
        (["digits_vit", "digits_vitt"], "did you mean 'digits_vit'"),
        (["digits_vit", "digits_vit '"], "a quotation mark is left open"),
        (["digits_vit", "kernel_regression"], "an image classifier is needed"),
        (["digits_vit", "digits_vit --device cuda"], "steps are timed on the CPU"),
    ],
)
def test_wrong_recipes_are_said_before_anything_is_opened(
    words: list[str], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recipe_time, "_in_a_process", lambda *_: pytest.fail("a recipe was opened"))
    assert main(["recipes", *words]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--data.batch_size 1000", "an epoch needs more than 4 steps to be timed"),
        ("--data.name imagefolder --data.root nowhere", "nowhere"),
    ],
)
def test_what_only_opening_shows_is_said_before_anything_is_timed(
    options: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recipe_time, "_measure", lambda *_: pytest.fail("a recipe was timed"))
    assert main(["recipes", f"digits_vit {options}"]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert len(said.splitlines()) == 1
