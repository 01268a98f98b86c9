"""Whole trainings over seeds, and the machine's other load."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import machine_load, speedrun
from benchmarks.__main__ import main

SMALL = ["--model.width=16", "--model.depth=1", "--model.num_heads=2", "--train.epochs=1", "--optim.warmup_epochs=0"]


def test_seeds_are_run_once_and_their_time_is_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine_load, "MOST_OTHER_LOAD", 1.0)  # tests run beside one another
    words = ["speedrun", "--config", "digits_vit", "--seeds", "0", "1", "--bar", "0.001", *SMALL]
    words += ["--folder", str(tmp_path), "--output", str(tmp_path / "result.json")]
    assert main(words) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert [row["seed"] for row in result["runs"]] == [0, 1]
    for row in result["runs"]:
        assert sum(row["parts"].values()) == pytest.approx(row["seconds"], abs=0.01)
        assert min(row["parts"].values()) >= 0
        assert row["parts"]["start"] > 0.5  # torch is imported
    assert result["above"]["bar"] == 0.001
    capsys.readouterr()
    monkeypatch.setattr(speedrun, "run_seed", lambda *_: pytest.fail("a finished seed was run again"))
    assert main(words) == 0
    assert capsys.readouterr().err.count("measured before") == 2


def test_the_bar_is_met_by_the_mean_over_seeds() -> None:
    def rows(*values: float) -> list[dict[str, float]]:
        return [{"test.top1": value} for value in values]

    five = rows(0.81, 0.82, 0.815, 0.812, 0.818)
    assert speedrun.above(five, 0.80)["met"]
    assert not speedrun.above(five, 0.813)["met"]  # above, but not at p < 0.01
    t = 0.015 / (17e-6 / 5) ** 0.5  # and Student's distribution of four degrees of freedom in closed form
    by_hand = 0.5 - 3 / 8 * t / (1 + t**2 / 4) ** 0.5 * (1 - t**2 / (12 * (1 + t**2 / 4)))
    assert speedrun.above(five, 0.80)["p"] == pytest.approx(by_hand)
    with pytest.raises(ValueError, match="at least two"):
        speedrun.above(rows(0.9), 0.8)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--bar", "80"], "--bar: 80 is not valid: it is a fraction, as 0.8"),
        (["--bar", "0.8", "--seeds", "1"], "--bar: the spread over seeds needs at least two --seeds"),
        (["--seed", "1"], "--seed: it is not valid here: --seeds and --folder say it for every run"),
        (["--seed=1"], "--seed: it is not valid here: --seeds and --folder say it for every run"),
        (["--output_dir=x"], "--output_dir: it is not valid here"),
        (["--output-dir", "x"], "--output_dir: it is not valid here"),
        (["--bar", "0.8", "--seeds", "0", "0", "1"], "--seeds: 0 is there twice; name each seed once"),
    ],
)
def test_wrong_words_are_one_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speedrun", "--config", "digits_vit", *words]) == 2
    assert line in capsys.readouterr().err


@pytest.mark.parametrize("config", ["kernel_regression", "cifar10_mae_small_cpu"])
def test_another_task_is_refused_before_anything_is_trained(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["speedrun", "--config", config, "--folder", str(tmp_path / "runs")]) == 2
    assert f"--config: {config!r} is not valid: its task is" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_run_that_fails_is_an_error_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_load, "MOST_OTHER_LOAD", 1.0)
    with pytest.raises(RuntimeError, match=r"exit code 2: .*optim\.lr"):
        speedrun.run_seed("digits_vit", ["--optim.lr", "-1"], 0, tmp_path / "run")


def test_a_seed_is_measured_again_where_the_settings_behind_the_words_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, found = tmp_path / "mine.yaml", iter((0.5, 0.6))
    row = {"seed": 0, "seconds": 1.0, "parts": {"steps": 1.0}}
    monkeypatch.setattr(speedrun, "run_seed", lambda *_: row | {"test.top1": next(found)})
    for epochs, top1 in ((1, 0.5), (1, 0.5), (2, 0.6)):
        config.write_text(f"model: {{name: vit_digits}}\ndata: {{name: digits}}\ntrain: {{epochs: {epochs}}}\n")
        result = speedrun.speedrun(str(config), ["--optim.warmup_epochs=0"], [0], tmp_path / "runs", lambda _: None)
        assert result["runs"][0]["test.top1"] == top1
        assert "settings" not in result["runs"][0]
    record = tmp_path / "runs" / "seed0.json"
    kept = {name: value for name, value in json.loads(record.read_text()).items() if name != "settings"}
    record.write_text(json.dumps(kept))  # as an earlier version wrote it
    again = speedrun.speedrun(str(config), ["--optim.warmup_epochs=0"], [0], tmp_path / "runs", lambda _: None)
    assert again["runs"][0]["test.top1"] == 0.6
    for text in ("{", "[1]", "{}"):
        record.write_text(text)
        with pytest.raises(ValueError, match=r"^--folder: .*seed0\.json' is not valid: it is damaged; remove it"):
            speedrun.speedrun(str(config), [], [0], tmp_path / "runs", lambda _: None)


def test_a_run_with_other_options_is_put_aside_with_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_seed(_config: str, _overrides: list[str], seed: int, run: Path) -> dict[str, Any]:
        assert not (run / "config.yaml").exists()
        (run / "checkpoints").mkdir(parents=True, exist_ok=True)
        for file in (run / "config.yaml", run / "checkpoints" / "last", run.with_suffix(".log")):
            file.write_text(str(next(count)))
        return {"seed": seed, "test.top1": 0.5, "seconds": 1.0, "parts": {"steps": 1.0}}

    count, folder, told = iter(range(100)), tmp_path / "runs", list[str]()
    monkeypatch.setattr(speedrun, "run_seed", run_seed)
    speedrun.speedrun("digits_vit", SMALL, [0, 1], folder, told.append)
    before = {file.relative_to(folder): file.read_text() for file in folder.rglob("seed0*/**/*") if file.is_file()}
    before |= {file.relative_to(folder): file.read_text() for file in folder.glob("seed0.*")}
    assert len(before) == 4
    speedrun.speedrun("digits_vit", [*SMALL, "--optim.lr=0.1"], [0], folder, told.append)
    assert f"seed 0: measured before with other options or settings; that run is in {folder / 'earlier-1'} now" in told
    earlier = folder / "earlier-1"
    assert {file.relative_to(earlier): file.read_text() for file in earlier.rglob("*") if file.is_file()} == before
    assert json.loads((folder / "seed0.json").read_text())["words"][-1] == "--optim.lr=0.1"
    (folder / "seed1.json").write_text("{")
    with pytest.raises(ValueError, match=r"seed1\.json' is not valid: it is damaged"):
        speedrun.speedrun("digits_vit", SMALL, [0, 1], folder, told.append)
    assert not (folder / "earlier-2").exists(), "all records are read before the first run begins"


def test_the_parts_of_a_run_and_its_own_load_are_taken_from_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owns: list[float] = []

    class Load:
        def refuse(self, own: float = 0.0) -> float:
            owns.append(own)
            return 0.01

    def run_process(words: list[str], run: Path) -> tuple[float, dict[str, float]]:
        assert words[-4:] == ["--seed", "3", "--output_dir", str(run)]
        assert not run.exists()
        run.mkdir()
        summary = dict.fromkeys(speedrun._KEPT) | {"seed": 3, "seconds": 50.0, "device": "cpu"}
        (run / "summary.json").write_text(json.dumps(summary))
        return 12.5, {"config.yaml": 103.0, "metrics.jsonl": 160.0}

    clock = iter((100.0, 170.0))
    monkeypatch.setattr(speedrun, "Load", Load)
    monkeypatch.setattr(speedrun, "_run_process", run_process)
    monkeypatch.setattr(speedrun, "time", SimpleNamespace(sleep=lambda _: None, time=lambda: next(clock)))
    (tmp_path / "run").mkdir()  # of a process that was killed
    row = speedrun.run_seed("digits_vit", [], 3, tmp_path / "run")
    assert row["parts"] == {"start": 3.0, "steps": 50.0, "between": 7.0, "test": 10.0}
    assert (row["seconds"], row["seed"], row["other_load"]) == (70.0, 3, 0.01)
    assert owns == [0.0, 12.5]


def test_marks_are_the_times_of_the_settings_and_of_the_history(tmp_path: Path) -> None:
    files = {"config.yaml": 1000, "metrics.jsonl": 2000, "summary.json": 3000}
    script = "import os, pathlib, sys, time\n" + "".join(
        f"pathlib.Path(sys.argv[1], {name!r}).touch(); os.utime(pathlib.Path(sys.argv[1], {name!r}), ({at}, {at}))\n"
        for name, at in files.items()
    )
    run = tmp_path / "run"
    run.mkdir()
    own, marks = speedrun._run_process([sys.executable, "-c", f"{script}time.sleep(0.5)", str(run)], run)
    assert marks == {"config.yaml": 1000.0, "metrics.jsonl": 2000.0}
    assert 0 < own < 5
