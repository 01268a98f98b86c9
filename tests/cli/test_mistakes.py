"""Plausible mistakes at the command line: the one line that each prints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.faults.malformed.run_folders import copy_run
from vit.cli import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `run`, in which the commands are typed."""
    monkeypatch.chdir(tmp_path)
    copy_run(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "train --config digits_vit --task translation --output_dir new",
            "--task: 'translation' is not valid: the file decides the task, and digits_vit is of 'classification'; "
            "choose another --config",
        ),
        (
            "train --config run",
            "--config: 'run' is a run; continue it with --resume run, or begin another one like it with "
            "--config run/config.yaml",
        ),
        ("train --config your_images --data=", "data.root: '' is not valid: name a folder, or a list of images"),
        (
            "predict run http://example.org/a//b.jpg",
            "image: 'http://example.org/a//b.jpg' is not valid: images are read from files; download it first",
        ),
    ],
)
def test_one_line_says_what_would_be_right(
    here: Path, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    before = sorted(here.rglob("*"))
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"vit: {said}\n"
    assert sorted(here.rglob("*")) == before


def test_a_finished_run_without_checkpoints_is_not_trained_again(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(here / "run" / "checkpoints")
    before = (here / "run" / "summary.json").read_bytes()
    assert main(["train", "--resume", "run"]) == 2
    steps = "although it was trained for 6 steps; restore one, or start again with another --output_dir"
    assert capsys.readouterr().err == f"vit: --resume: 'run' has no checkpoint any more, {steps}\n"
    assert (here / "run" / "summary.json").read_bytes() == before
