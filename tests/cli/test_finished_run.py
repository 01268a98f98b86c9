"""A run that was finished, and whose checkpoints are gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.faults.malformed.run_folders import copy_run
from vit.cli import main


def test_a_finished_run_without_checkpoints_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = copy_run(tmp_path)
    shutil.rmtree(run / "checkpoints")
    before = (run / "summary.json").read_bytes()
    assert main(["train", "--resume", "run"]) == 2
    steps = "although it was trained for 6 steps; restore one, or start again with another --output_dir"
    assert capsys.readouterr().err == f"vit: --resume: 'run' has no checkpoint any more, {steps}\n"
    assert (run / "summary.json").read_bytes() == before
