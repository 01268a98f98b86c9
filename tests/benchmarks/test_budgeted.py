"""Trainings of a list: as many epochs as the minutes hold, stopped when a call is over, and continued by the next."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from benchmarks import budgeted as module
from benchmarks.__main__ import main
from benchmarks.budgeted import BudgetedRun, read_list, train_list
from benchmarks.epochs import as_options
from vit.models import build_model
from vit.models.zoo import resolve
from vit.runs import holds_checkpoints, read_metrics
from vit.settings import resolve_run

SMALL = (
    "{model.width: 16, model.depth: 1, model.num_heads: 2, optim.warmup_epochs: 0, data.workers: 0, "
    "train.ema_decay: null, device: cpu}"
)
FILE = f"""
settings: {SMALL}
rehearsal: {{model.depth: 2}}
runs:
  first: {{config: digits_vit, minutes: 0.5, settings: {{seed: 3}}}}
  second: {{config: digits_vit, minutes: 0.5}}
"""
LONG = 900.0
CUDA_LIST = Path(module.__file__).with_name("small_data_cuda.yaml")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "list.yaml"
    path.write_text(FILE)
    return path


def test_settings_of_all_runs_and_of_each(file: Path) -> None:
    first, second = read_list(file, rehearse=False)
    assert (first.settings["seed"], first.settings["model.depth"], first.minutes) == (3, 1, 0.5)
    assert "seed" not in second.settings
    rehearsed, _ = read_list(file, rehearse=True)
    assert (rehearsed.settings["model.depth"], rehearsed.minutes) == (2, module.REHEARSAL_MINUTES)


def test_a_share_is_a_part_of_the_epochs() -> None:
    words = as_options({"augment.growing_epochs": "2/3", "train.ema_decay": None}, 12)
    assert words == ["--train.epochs=12", "--augment.growing_epochs=8", "--train.ema_decay=null"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("settings: {}", "runs: None is not valid"),
        ("runs: {a: {config: digits_vit}}", r"runs\.a: .*it has config, minutes and, if any, settings"),
        (FILE + "more: 1", r"FILE: .*it has no section \['more'\]"),
        ("runs: {a: {config: digits_vit, minutes: nine}}", r"runs\.a\.minutes: 'nine' .* above 0, and finite"),
        ("runs: {a: {config: digits_vit, minutes: -1}}", r"runs\.a\.minutes: -1 is not valid"),
        ("runs: {a: {config: [digits_vit], minutes: 1}}", r"runs\.a\.config: .* name a configuration"),
        ("runs: {a: {config: digits_vit, minutes: 1, settings: [1]}}", r"settings: \[1\] .* names with their values"),
        ("runs: {1: {config: digits_vit, minutes: 1}}", "runs: 1 is not valid: a run's name is text"),
        ("runs: {'..': {config: digits_vit, minutes: 1}}", "runs: '..' is not valid: a run's name is text"),
        ("runs: {a/b: {config: digits_vit, minutes: 1}}", "runs: 'a/b' is not valid: a run's name is text"),
    ],
)
def test_a_file_without_a_part_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_list(tmp_path / "list.yaml", rehearse=False)


class StoppedWhenSaved(subprocess.Popen[bytes]):
    """A process whose time is over when its run has written another checkpoint."""

    run: Path

    def wait(self, timeout: float | None = None) -> int:
        before = read_metrics(self.run)
        while timeout == LONG and self.poll() is None:
            if holds_checkpoints(self.run) and len(read_metrics(self.run)) > len(before):
                raise subprocess.TimeoutExpired("vit train", timeout)
            time.sleep(0.05)
        return super().wait(None if timeout == LONG else timeout)


def test_a_call_whose_time_is_over_stops_the_run_and_the_next_continues_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run, _), folder, begun = read_list(file, rehearse=False), tmp_path / "runs", list[str]()
    monkeypatch.setattr(module, "fitting_epochs", lambda *_: begun.append("begun") or (400, 0.1))
    monkeypatch.setattr("benchmarks.budgeted.time.monotonic", lambda: 0.0)
    monkeypatch.setattr(StoppedWhenSaved, "run", folder / "first", raising=False)
    monkeypatch.setattr("benchmarks.budgeted.subprocess.Popen", StoppedWhenSaved)
    steps: list[int] = []
    for _ in range(2):
        found = train_list([run], folder, LONG / 60, print)
        assert (found["unfinished"], found["runs"]) == (["first"], [])
        now = [record["step"] for record in read_metrics(folder / "first")]
        assert len(now) > len(steps)
        assert now[: len(steps)] == steps
        assert now == sorted(now)
        steps = now
    assert begun == ["begun"]


def test_a_whole_list_is_trained_told_and_not_repeated(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "fitting_epochs", lambda *_: (1, 30.0))
    words = ["budgeted", str(file), "--minutes", "5", "--folder", str(tmp_path / "runs")]
    assert main([*words, "--output", str(tmp_path / "result.json")]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert [(row["run"], row["epochs"], row["seed"]) for row in result["runs"]] == [("first", 1, 3), ("second", 1, 0)]
    assert result["unfinished"] == []
    monkeypatch.setattr(module, "_train", lambda *_: pytest.fail("a finished run was trained again"))
    capsys.readouterr()
    assert main(words) == 0
    assert "| first | 1 |" in capsys.readouterr().out


def test_a_run_that_fails_is_named(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "fitting_epochs", lambda *_: (1, 30.0))
    file.write_text(FILE.replace("seed: 3", "model.patch_size: 3"))
    with pytest.raises(ValueError, match=r"first: `vit train .*` ended with exit code 2"):
        train_list(read_list(file, rehearse=False)[:1], tmp_path / "runs", 5, print)


def test_a_run_that_fails_holds_up_no_other(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(run: BudgetedRun, *_: object) -> None:
        begun.append(run.name)
        raise module.RunFailed(f"{run.name}: it diverged")

    begun, told = list[str](), list[str]()
    monkeypatch.setattr(module, "_train", train)
    with pytest.raises(ValueError, match=r"^first: it diverged; second: it diverged$"):
        train_list(read_list(file, rehearse=False), tmp_path / "runs", 5, told.append)
    assert begun == ["first", "second"]
    assert told == ["first: it diverged", "second: it diverged"]


def test_the_list_for_a_cuda_device_is_of_settings_that_are_valid() -> None:
    names = [run.name for run in read_list(CUDA_LIST, rehearse=False)]
    assert names == list(yaml.safe_load(CUDA_LIST.read_text())["runs"])
    for rehearse, epochs in ((False, 30), (True, 2)):
        for run in read_list(CUDA_LIST, rehearse=rehearse):
            resolved = resolve_run(run.config, as_options(run.settings, epochs))
            architecture = resolve(resolved.config.model, 10)  # type: ignore[attr-defined]
            with torch.device("meta"):
                build_model(architecture)


def test_a_run_that_was_begun_as_another_one_is_refused(file: Path, tmp_path: Path) -> None:
    (run, _), folder = read_list(file, rehearse=False), tmp_path / "runs"
    (folder / "first").mkdir(parents=True)
    (folder / "first" / "config.yaml").write_text("seed: 3\n")
    assert train_list([run], folder, 0.0, print)["unfinished"] == ["first"]  # an earlier version wrote no record
    (folder / "first.json").write_text(json.dumps(module._asked(run)))
    assert train_list([run], folder, 0.0, print)["unfinished"] == ["first"]
    for changes, said in (
        ({"minutes": 9}, r"^runs\.first\.minutes: 9 is not valid: .*first was begun with 0\.5; give"),
        (
            {"settings": {**run.settings, "seed": 4}},
            r"^runs\.first\.seed: 4 is not valid: .*first was begun with 3",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            train_list([replace(run, **changes)], folder, 0.0, print)
    (folder / "first.json").write_text("{")
    with pytest.raises(ValueError, match=r"^runs\.first: .*first\.json, which says how it was begun, is damaged"):
        train_list([run], folder, 0.0, print)


def test_another_task_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    runs = [BudgetedRun("first", "digits_vit", 1, {}), BudgetedRun("second", "kernel_regression", 1, {})]
    with pytest.raises(ValueError, match=r"^runs\.second\.config: 'kernel_regression' is not valid: its task is"):
        train_list(runs, tmp_path / "runs", 1, lambda _: None)
    assert not (tmp_path / "runs").exists()


def test_a_run_that_does_not_end_in_time_is_killed_and_left_unfinished(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SAVING", 0.2)
    monkeypatch.setattr(module, "fitting_epochs", lambda *_: (2, 1.0))
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    started = subprocess.Popen

    def instead(words: list[str], **options: Any) -> Any:
        return started([words[0], "-c", stubborn], **options)

    monkeypatch.setattr("benchmarks.budgeted.subprocess.Popen", instead)
    told: list[str] = []
    result = train_list(read_list(file, rehearse=False), tmp_path / "runs", 8 / 60, told.append)
    assert result["unfinished"] == ["first", "second"]
    assert "first: killed, as it took more than 0.2 s to save" in told[-1]
