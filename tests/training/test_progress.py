"""A run's counters, and where its steps were taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.tiny import tiny
from vit.training.loop import train
from vit.training.progress import Progress

A_COMMIT, ANOTHER = "0123abc", "4567def"


def test_a_run_of_one_machine_and_commit_names_them() -> None:
    progress = Progress()
    progress.begin_stretch("a Xeon", A_COMMIT)
    for progress.step in (0, 7):  # stopped and continued
        progress.begin_stretch("a Xeon", A_COMMIT)
    assert [progress.over_stretches(fact) for fact in ("machine", "commit")] == ["a Xeon", A_COMMIT]
    assert len(progress.stretches) == 1


def test_each_part_of_a_run_has_the_step_at_which_it_ended() -> None:
    progress = Progress()
    for progress.step, machine, commit in (
        (0, "a Xeon", A_COMMIT),
        (1200, "an EPYC", A_COMMIT),
        (1500, "a Xeon", None),
    ):
        progress.begin_stretch(machine, commit)
    assert progress.over_stretches("machine") == "a Xeon to step 1,200, an EPYC to step 1,500, a Xeon"
    assert progress.over_stretches("commit") is None
    progress.begin_stretch("a Xeon", ANOTHER)  # continued from the same step: the other took none
    assert progress.over_stretches("commit") == f"{A_COMMIT} to step 1,500, {ANOTHER}"


def test_of_a_run_that_an_earlier_version_began_only_the_rest_is_known() -> None:
    progress = Progress(step=40)
    progress.begin_stretch("a Xeon", A_COMMIT)
    assert progress.stretches == [
        {"from_step": 0, "machine": None, "commit": None},
        {"from_step": 40, "machine": "a Xeon", "commit": A_COMMIT},
    ]
    assert progress.over_stretches("machine") is None


def test_a_run_that_is_continued_elsewhere_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny()
    monkeypatch.setattr("vit.training.checkpoints.device_name", lambda _: "a Xeon")
    train(config, tmp_path)
    steps = json.loads((tmp_path / "summary.json").read_text())["steps"]
    monkeypatch.setattr("vit.training.checkpoints.device_name", lambda _: "an EPYC")
    longer = tiny(train={"epochs": config.train.epochs + 1})
    assert train(longer, tmp_path, resume=True)["machine"] == f"a Xeon to step {steps}, an EPYC"
