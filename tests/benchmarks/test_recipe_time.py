"""Trainings of several recipes, timed by some of their steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import machine_load
from benchmarks.__main__ import main

SMALL = (
    "--model.width=16 --model.num_heads=2 --data.batch_size=32 --data.workers=0 --train.epochs=6 "
    "--optim.warmup_epochs=0 --device=cpu"
)
RECIPES = [f"digits_vit {SMALL} --model.depth={depth}" for depth in (1, 12)]


def test_recipes_are_timed_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_load, "MOST_OTHER_LOAD", 1.0)  # tests run beside one another
    output = tmp_path / "result.json"
    assert main(["recipes", *RECIPES, "--turns", "1", "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    one, other = found["rows"]
    assert [row["recipe"] for row in found["rows"]] == RECIPES
    assert one["times_the_first"]["median"] == 1
    assert other["times_the_first"]["median"] > 1.5  # twelve blocks against one
    for row in found["rows"]:
        (seconds,) = row["seconds_per_epoch"]
        assert row["minutes"] == pytest.approx(seconds * 6 / 60)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["digits_vit", "--turns", "0"], "--turns: 0 is not valid: it must be at least 1"),
        (["digits_vit", "digits_vit"], "each must be another one"),
        (["digits_vit --model.width 3.5"], "model.width"),
        (["digits_vitt"], "digits_vit"),
    ],
)
def test_wrong_recipes_are_said_before_anything_is_timed(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recipes", *words]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert len(said.splitlines()) == 1
