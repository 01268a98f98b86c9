"""A run's counters, and where its steps were taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.malformed.run_folders import MISSING, in_state
from tests.training.tiny import tiny
from vit.data.loading import Step
from vit.training.loop import train
from vit.training.progress import RunCounters

A_COMMIT, ANOTHER = "0123abc", "4567def"


def test_a_logged_loss_is_the_mean_of_the_steps_samples() -> None:
    progress = RunCounters()
    progress.count(Step([], num_samples=3, normalizer=30.0), loss=2.0, accuracy=1.0, seconds=0.5)
    progress.count(Step([], num_samples=1, normalizer=10.0), loss=4.0, accuracy=0.0, seconds=0.25)
    closed = progress.close_window()
    assert closed == {"loss": 100.0, "hits": 30.0, "normalizer": 40.0, "samples": 4, "seconds": 0.75}
    assert not any(progress.window.values())


def test_a_run_of_one_machine_and_commit_names_them() -> None:
    progress = RunCounters()
    progress.begin_stretch("a Xeon", A_COMMIT)
    for progress.step in (0, 7):  # stopped and continued
        progress.begin_stretch("a Xeon", A_COMMIT)
    assert [progress.join_stretches(fact) for fact in ("machine", "commit")] == ["a Xeon", A_COMMIT]
    assert len(progress.stretches) == 1


def test_each_part_of_a_run_has_the_step_at_which_it_ended() -> None:
    progress = RunCounters()
    for progress.step, machine, commit in (
        (0, "a Xeon", A_COMMIT),
        (1200, "an EPYC", A_COMMIT),
        (1500, "a Xeon", None),
    ):
        progress.begin_stretch(machine, commit)
    assert progress.join_stretches("machine") == "a Xeon, to step 1,200; an EPYC, to step 1,500; a Xeon"
    assert progress.join_stretches("commit") is None
    progress.begin_stretch("a Xeon", ANOTHER)  # continued from the same step: the other took none
    assert progress.join_stretches("commit") == f"{A_COMMIT}, to step 1,500; {ANOTHER}"


def test_of_a_run_that_an_earlier_version_began_only_the_rest_is_known() -> None:
    progress = RunCounters(step=40)
    progress.begin_stretch("a Xeon", A_COMMIT)
    assert progress.stretches == [
        {"from_step": 0, "machine": None, "commit": None},
        {"from_step": 40, "machine": "a Xeon", "commit": A_COMMIT},
    ]
    assert progress.join_stretches("machine") is None


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of a Xeon, and an EPYC to continue it on."""
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    monkeypatch.setattr("vit.training.starting.device_name", lambda _: "a Xeon")
    train(tiny(), tmp_path)
    monkeypatch.setattr("vit.training.starting.device_name", lambda _: "an EPYC")
    return tmp_path


LONGER = tiny(train={"epochs": 3})


def test_a_run_that_is_continued_elsewhere_names_both(finished: Path) -> None:
    steps = json.loads((finished / "summary.json").read_text())["steps"]
    assert train(LONGER, finished, resume=True)["machine"] == f"a Xeon, to step {steps}; an EPYC"


def test_a_machine_that_only_tests_is_not_named(finished: Path) -> None:
    (finished / "summary.json").unlink()  # as of a run that was killed while it was tested
    assert train(tiny(), finished, resume=True)["machine"] == "a Xeon"


def test_a_checkpoint_of_an_earlier_version_is_continued(finished: Path) -> None:
    in_state("progress", "stretches", value=MISSING)(finished)
    assert train(LONGER, finished, resume=True)["machine"] is None
