"""Accuracy against data size: the same images for every recipe, as many seen, and a comparison that can be stopped."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.data.image_folders import make_folder
from tests.training.tiny import assert_same_bits
from vit.cli import main
from vit.data.images import open_training
from vit.experiments import planned_runs
from vit.experiments.data_size import _best_rates, plan_runs
from vit.experiments.data_size_table import data_size_markdown, summarize
from vit.experiments.planned_runs import PlannedRun
from vit.runs import append_metrics, read_metrics
from vit.settings import resolve_run
from vit.tasks.classification.config import ClassificationRun
from vit.training import records
from vit.training.loop import train

RECIPE = """\
model: {name: vit, image_size: 8, patch_size: 4, width: 16, depth: 1, num_heads: 2}
data: {name: fake, fake_images: 90, fake_classes: 3, batch_size: 16, workers: 0, split_seed: 5}
augment: {crop: random_resized, mixup_alpha: 0.2, mix_group: 4}
optim: {lr: 3.0e-3, warmup_epochs: 0.5}
train: {epochs: 2, precision: fp32, ema_decay: 0.9, log_every_steps: 1}
seed: 7
device: cpu
"""
OTHER = RECIPE.replace("depth: 1", "depth: 2").replace("3.0e-3", "1.0e-3")
PARTS = ("0.1", "1")


@pytest.fixture(scope="module", autouse=True)
def _without_pictures_of_runs() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
        yield


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str, text: str = RECIPE) -> Path:
        (tmp_path / f"{name}.yaml").write_text(text)
        return tmp_path / f"{name}.yaml"

    return write


def planned(
    folder: Path,
    fractions: tuple[float, ...] = (0.1, 0.4, 1.0),
    num_seeds: int = 2,
    lr_factors: tuple[float, ...] = (1.0,),
) -> list[PlannedRun]:
    recipes = {}
    for name, text in (("first", RECIPE), ("second", OTHER)):
        (folder / f"{name}.yaml").write_text(text)
        recipes[name] = resolve_run(folder / f"{name}.yaml")
    return plan_runs(recipes, fractions, num_seeds, folder / "out", lr_factors)


def compare(folder: Path, *recipes: Path, seeds: int = 1, parts: tuple[str, ...] = PARTS, at_once: int = 1) -> int:
    return main(["compare", *words(folder, *recipes, seeds=seeds, parts=parts, at_once=at_once)])


def words(folder: Path, *recipes: Path, seeds: int = 1, parts: tuple[str, ...] = PARTS, at_once: int = 1) -> list[str]:
    counts = ["--seeds", str(seeds), "--at_once", str(at_once)]
    return ["--train", *map(str, recipes), "--fractions", *parts, *counts, "--output_dir", str(folder)]


def said(folder: Path) -> tuple[Any, str]:
    """The result without what the clock says and where it lies, and the table."""
    result = json.loads((folder / "data_size.json").read_text())
    for row in result["runs"]:
        del row["seconds"], row["run"]
    return result, (folder / "data_size.md").read_text()


# ------------------------------------------------------------------ what is planned


def test_subsets_are_nested_balanced_and_the_same_for_every_recipe(tmp_path: Path) -> None:
    subsets: dict[tuple[float, int], list[set[int]]] = {}
    validation = set()
    for run in planned(tmp_path):
        train, val = open_training(run.config.data)
        subsets.setdefault((run.fraction, run.config.seed), []).append(set(train.indices.tolist()))
        validation.add(tuple(val.indices.tolist()))
        counts = torch.bincount(train.labels)
        assert counts.tolist() == [round(27 * run.fraction)] * 3
    assert len(validation) == 1
    for both in subsets.values():
        assert both[0] == both[1]
    for seed in (7, 8):
        assert subsets[0.1, seed][0] < subsets[0.4, seed][0] < subsets[1.0, seed][0]
    assert subsets[0.1, 7] != subsets[0.1, 8]
    assert subsets[1.0, 7] == subsets[1.0, 8]


def test_the_first_seeds_curves_come_first(tmp_path: Path) -> None:
    order = [(run.config.seed, run.fraction, run.recipe) for run in planned(tmp_path, fractions=(1.0, 0.4))]
    assert order == [(n, at, name) for n in (7, 8) for at in (0.4, 1.0) for name in ("first", "second")]


@pytest.mark.parametrize(
    ("change", "words", "complaint"),
    [
        (("seed: 7", "seed: 8"), [], "other: seed: 8 is not valid: one has 7"),
        (("epochs: 2", "epochs: 3"), [], "other: train.epochs: 3 is not valid: one has 2"),
        (("split_seed: 5", "split_seed: 6"), [], "other: data.split_seed: 6"),
        (("seed: 7", "seed: 7\noutput_dir: x"), [], "output_dir: 'x' is not valid"),
        (("", ""), ["--data.fraction", "0.5"], "data.fraction: 0.5 is not valid: the comparison chooses"),
        (("", ""), ["--fractions", "0.5", "1.5"], "--fractions: 1.5 is not valid: each must be in (0, 1]"),
        (("", ""), ["--fractions", "0"], "--fractions: 0.0"),
        (("", ""), ["--fractions", "0.5", "0.5"], "--fractions: [0.5, 0.5] is not valid: a fraction is there twice"),
        (("", ""), ["--lr_factors", "1", "0"], "--lr_factors: 0.0 is not valid: each must be a finite number above 0"),
        (("", ""), ["--lr_factors", "inf"], "--lr_factors: inf is not valid"),
        (("", ""), ["--lr_factors", "0.3", "0.30000001"], "--lr_factors: [0.3, 0.30000001] is not valid: two of them"),
        (("", ""), ["--lr_factors", "1", "1.0000001"], "--lr_factors: [1.0, 1.0000001] is not valid: two of them"),
        (("", ""), ["--lr_factors", "1e20"], "--lr_factors: 1e+20 is not valid for one: optim.lr: 3e+17 is not"),
        (("", ""), ["--seeds", "0"], "--seeds: 0 is not valid"),
        (("", ""), ["--at_once", "0"], "--at_once: 0 is not valid: it must be at least 1"),
        (("", ""), ["--seedz", "0"], "--seedz: there is no such option or setting; did you mean --seeds?"),
    ],
)
def test_recipes_that_would_not_be_judged_alike_are_refused(
    change: tuple[str, str],
    words: list[str],
    complaint: str,
    write: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    files = [str(write("one")), str(write("other", RECIPE.replace(*change) if change[0] else RECIPE))]
    out = str(tmp_path / "out")
    assert main(["compare", "--train", *files, "--output_dir", out, *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"vit: {complaint}")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_what_is_no_recipe_is_refused(write: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(write("one"))
    assert main(["compare", "--train", recipe, recipe]) == 2
    assert "--train: 'one' is there twice" in capsys.readouterr().err
    text = str(write("curve", "task: regression\n"))
    assert main(["compare", "--train", text, recipe]) == 2
    assert "--train: 'curve' is not valid: its task is regression" in capsys.readouterr().err
    assert main(["compare", "--train", recipe, "digits_rsnet"]) == 2
    known = "is neither a file nor a packaged configuration; did you mean 'digits_resnet'?"
    assert capsys.readouterr().err == f"vit: --train: 'digits_rsnet' {known}\n"
    assert main(["compare", "--train", recipe, "absent.yaml"]) == 2
    assert capsys.readouterr().err.startswith("vit: --train: cannot read 'absent.yaml'")


def test_more_recipes_than_the_figure_can_show_are_refused_before_anything_is_trained(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path / "out", *(write(f"recipe{number}") for number in range(7))) == 2
    assert "--train: 7 is not valid: at most 6 recipes can be told apart in the figure" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_rates_are_multiples_of_each_recipes_own(tmp_path: Path) -> None:
    runs = planned(tmp_path, fractions=(1.0,), num_seeds=1, lr_factors=(1.0, 0.1))
    assert [(run.recipe, run.config.optim.lr) for run in runs] == [
        ("first", 3e-4),
        ("first", 3e-3),
        ("second", 1e-4),
        ("second", 1e-3),
    ]
    folders = [str(run.folder.relative_to(tmp_path / "out" / run.recipe)) for run in runs[:2]]
    assert folders == ["1.0/lr-0.0003/seed-7", "1.0/seed-7"], "more factors leave what was trained before in its place"
    assert [run.origins["optim.lr"] for run in runs[:2]] == ["command line", "file"]


# ------------------------------------------------------------------ what is trained


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recipes and a copy of the first, two parts, two seeds, never interrupted."""
    folder = tmp_path_factory.mktemp("compared")
    for name, text in (("one", RECIPE), ("copy", RECIPE), ("other", OTHER)):
        (folder / f"{name}.yaml").write_text(text)
    files = [folder / f"{name}.yaml" for name in ("one", "copy", "other")]
    assert compare(folder / "out", *files, seeds=2) == 0
    return folder / "out"


def test_every_run_sees_as_many_images_in_as_many_steps_at_the_same_rates(compared: Path) -> None:
    result, _ = said(compared)
    assert len(result["runs"]) == 3 * 2 * 2
    assert {(row["images_seen"], row["steps"]) for row in result["runs"]} == {(162, 12)}
    assert [point["num_images"] for point in result["curves"]["one"]] == [9, 81]
    schedules = set()
    for part in ("0.1", "1.0"):
        records = read_metrics(compared / "one" / part / "seed-7")
        rates = [(record["images_seen"], record["lr"]) for record in records if "lr" in record]
        schedules.add((*rates, *(record["step"] for record in records if "val.top1" in record)))
    assert len(schedules) == 1


def test_identical_recipes_have_identical_curves(compared: Path) -> None:
    result, table = said(compared)
    assert result["curves"]["one"] == result["curves"]["copy"]
    assert result["curves"]["one"] != result["curves"]["other"]
    for point in result["differences"]["copy"]:
        assert (point["mean"], point["low"], point["high"]) == (0, 0, 0)
    assert table.count("+0.00 [+0.00, +0.00]") == 2
    assert "162 images seen, 12 steps" in table


def test_the_numbers_lie_beside_the_picture(compared: Path) -> None:
    assert (compared / "data_size.png").read_bytes().startswith(b"\x89PNG")
    with (compared / "data_size.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    result = json.loads((compared / "data_size.json").read_text())
    assert [float(row["test.top1"]) for row in rows] == [row["test.top1"] for row in result["runs"]]
    assert result["conventions"]["low, high"].startswith("95 % t-interval")
    for run in result["runs"]:
        summary = json.loads((Path(run["run"]) / "summary.json").read_text())
        assert {key: run[key] for key in ("precision", "machine", "commit")} == {
            key: summary[key] for key in ("precision", "machine", "commit")
        }


def test_runs_of_different_precisions_are_said_below_the_table(compared: Path) -> None:
    rows = json.loads((compared / "data_size.json").read_text())["runs"]
    assert "precision" not in data_size_markdown(summarize(rows))
    rows = [row | {"precision": "bf16"} for row in rows]
    early = {key: value for key, value in rows[0].items() if key != "precision"}
    mixed = data_size_markdown(summarize([early, rows[1] | {"precision": "fp32"}, *rows[2:]]))
    assert f"- Not all runs have the same precision: {len(rows) - 2} in bf16 and 1 in fp32." in mixed


def test_a_run_is_repeated_by_train_alone(compared: Path, tmp_path: Path) -> None:
    run = compared / "other" / "0.1" / "seed-8"
    assert main(["train", "--config", str(run / "config.yaml"), "--output_dir", str(tmp_path / "again")]) == 0
    assert_same_bits(run, tmp_path / "again")
    assert "fraction: 0.1  # command line" in (run / "config.yaml").read_text()


def test_the_first_seed_chooses_a_rate_on_validation_images_for_each_recipe_and_part(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test accuracies say the opposite of the validation's here, so choosing by them would show."""
    best = {("one", 0.1): 0.003, ("one", 1.0): 0.0003, ("other", 0.1): 0.0001, ("other", 1.0): 0.001}
    trained, finished = [], dict[Path, dict[str, Any]]()

    def train(run: PlannedRun) -> dict[str, Any]:
        lr = run.config.optim.lr
        is_best = lr == best[run.recipe, run.fraction]
        trained.append((run.config.seed, run.fraction, run.recipe, lr))
        accuracies = {"val.top1": 0.8 if is_best else 0.7, "test.top1": 0.6 if is_best else 0.9}
        counts = dict.fromkeys(("best.step", "steps", "images_seen", "train.n_total", "test.n_total", "params"), 1)
        facts = {"last.test.top1": 0.5, "seconds": 1.0, "gmacs": 1.0, "data.fingerprint": f"{run.fraction}+same"}
        now[0] += 600
        return finished.setdefault(run.folder, {**accuracies, **counts, **facts})

    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(planned_runs, "_train", train)
    monkeypatch.setattr(planned_runs, "_finished", lambda run: finished.get(run.folder))
    asked = words(tmp_path / "out", write("one"), write("other", OTHER), seeds=3)
    assert main(["compare", *asked, "--lr_factors", "0.1", "1"]) == 0
    cells = list(best)
    first = [(7, at, name) for at in (0.1, 1.0) for name in ("one", "other")]
    rates = {"one": (0.0003, 0.003), "other": (0.0001, 0.001)}
    assert trained[:8] == [(*cell, rate) for cell in first for rate in rates[cell[2]]]
    assert sorted(trained[8:]) == sorted((seed, at, name, best[name, at]) for seed in (8, 9) for name, at in cells)
    result = json.loads((tmp_path / "out" / "data_size.json").read_text())
    assert [row["chosen"] for row in result["runs"]].count(False) == 4
    for points in result["curves"].values():
        assert [point["by_seed"] for point in points] == [dict.fromkeys(("7", "8", "9"), 0.6)] * 2
    said = capsys.readouterr()
    assert said.err.startswith("[1/16] one, 10 % of the data, rate 0.0003, seed 7\n")
    assert "\n[16/16] other, 100 % of the data, rate 0.001, seed 9" in said.err
    left = re.findall(r"about (.+) left", said.err)  # ten minutes a run, with the seconds of its steps told as 1
    assert left[7:] == ["1 h 20 min", "1 h 10 min", "1 h", "50 min", "40 min", "30 min", "20 min", "10 min"]
    assert "; rates tried with the first seed: 0.0003, 0.003, best on validation images: " in said.out
    assert "best on validation images: 0.003 with 10 %, 0.0003 with 100 %.\n" in said.out


def test_of_rates_that_are_equally_good_the_smallest_is_chosen(tmp_path: Path) -> None:
    runs = planned(tmp_path, fractions=(1.0,), num_seeds=1, lr_factors=(1.0, 0.1, 0.5))
    summaries = [{"val.top1": accuracy} for accuracy in (0.5, 0.7, 0.7, 0.7, 0.7, 0.5)]
    assert _best_rates(runs, summaries) == {("first", 1.0): 0.0015, ("second", 1.0): 0.0001}


def test_the_time_left_includes_the_runs_that_follow() -> None:
    end = planned_runs._expected_end
    assert end({"one": [60.0]}, ["one"]).startswith("; about 1 min left")
    assert end({"one": [60.0]}, ["one", "one", "other"]).startswith("; about 3 min left")


@pytest.mark.parametrize("at_once", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_rate_with_which_the_loss_is_not_finite_is_not_chosen(
    at_once: int, write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rate of 3e8 without clipping overflows; the further seed is trained without it, and the table tells of it."""
    unclipped = [text.replace("{lr:", "{name: sgd, clip_norm: null, lr:") for text in (RECIPE, OTHER)]
    recipes = write("one", unclipped[0]), write("other", unclipped[1])
    asked = words(tmp_path / "out", *recipes, parts=("1",), seeds=2, at_once=at_once)
    assert main(["compare", *asked, "--lr_factors", "1", "1e11"]) == 0
    result, table = said(tmp_path / "out")
    chosen = [(row["recipe"], row["seed"], row["lr"], row["chosen"]) for row in result["runs"]]
    assert chosen == [
        ("one", 7, 3e-3, True),
        ("other", 7, 1e-3, True),
        ("one", 8, 3e-3, True),
        ("other", 8, 1e-3, True),
        ("one", 7, 3e8, False),
        ("other", 7, 1e8, False),
    ]
    assert [row["test.top1"] for row in result["runs"][4:]] == [None, None]
    assert (
        "rates tried with the first seed: 0.003, 3e+08 (loss not finite), best on validation images: 0.003 with 100 %."
        in table
    )
    told = "is not finite at step" if at_once == 1 else "one, 100 % of the data, rate 3e+08, seed 7: its loss stopped"
    assert told in capsys.readouterr().err


def test_without_a_rate_that_works_the_comparison_says_so(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unclipped = RECIPE.replace("{lr:", "{name: sgd, clip_norm: null, lr:")
    asked = words(tmp_path / "out", write("one", unclipped), write("other", unclipped), parts=("1",))
    assert main(["compare", *asked, "--lr_factors", "1e10", "1e11"]) != 0
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("vit: --lr_factors: one has no rate with which the loss stays finite on 1 of the data")


def test_more_factors_train_only_what_is_missing(write: Callable[..., Path], tmp_path: Path) -> None:
    asked = words(tmp_path / "out", write("one"), write("other", OTHER), parts=("0.1",))
    assert main(["compare", *asked]) == 0
    before = (tmp_path / "out" / "one" / "0.1" / "seed-7" / "metrics.jsonl").stat().st_mtime_ns
    assert main(["compare", *asked, "--lr_factors", "0.1", "1"]) == 0
    assert (tmp_path / "out" / "one" / "0.1" / "seed-7" / "metrics.jsonl").stat().st_mtime_ns == before
    result, table = said(tmp_path / "out")
    assert [(row["recipe"], row["lr"]) for row in result["runs"]] == [
        ("one", 3e-4),
        ("one", 3e-3),
        ("other", 1e-4),
        ("other", 1e-3),
    ]
    for pair in (result["runs"][:2], result["runs"][2:]):
        assert pair[0]["chosen"] == (pair[0]["val.top1"] >= pair[1]["val.top1"])
        assert pair[0]["chosen"] != pair[1]["chosen"]
    assert "rates tried with the first seed: 0.0003, 0.003, best on validation images: " in table


def test_a_later_seed_of_another_recipe_is_refused_before_anything_is_trained(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = write("one", RECIPE.replace("ema_decay: 0.9", "ema_decay: 0.8"))
    other, out = write("other", OTHER), tmp_path / "out"
    assert main(["compare", *words(out, changed, other, parts=("0.1",)), "--seed", "8"]) == 0
    shutil.rmtree(out / "other")
    capsys.readouterr()
    asked = words(out, write("one"), other, parts=("0.1",), seeds=2)
    assert main(["compare", *asked, "--lr_factors", "0.1", "1"]) == 2
    assert "train.ema_decay: 0.9 is not valid: the run in" in capsys.readouterr().err
    assert not (out / "other").exists()
    assert not (out / "one" / "0.1" / "seed-7").exists()


def test_two_runs_at_once_are_those_that_train_repeats_with_half_of_the_threads(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes = write("one"), write("other", OTHER)
    assert compare(tmp_path / "out", *recipes, parts=("0.1",), at_once=2) == 0
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // 2))
    try:
        for name in ("one", "other"):
            run = tmp_path / "out" / name / "0.1" / "seed-7"
            alone = str(tmp_path / "alone" / name)
            assert main(["train", "--config", str(run / "config.yaml"), "--output_dir", alone]) == 0
            assert_same_bits(run, Path(alone))
            assert "epoch 2 of 2: loss" in (run / "train.log").read_text()
    finally:
        torch.set_num_threads(threads)
    told = capsys.readouterr().err.splitlines()
    log = tmp_path / "out" / "one" / "0.1" / "seed-7" / "train.log"
    assert told[0] == f"[1/2] one, 10 % of the data, seed 7, {log}"
    assert len([line for line in told if ", seed 7: test top-1 " in line]) == 2


# ------------------------------------------------------------------ interrupted


@pytest.mark.slow
def test_two_runs_at_once_are_stopped_together_and_continued(write: Callable[..., Path], tmp_path: Path) -> None:
    long = [text.replace("epochs: 2", "epochs: 200") for text in (RECIPE, OTHER)]
    recipes = write("one", long[0]), write("other", long[1])
    asked = words(tmp_path / "out", *recipes, parts=("1",), at_once=2)
    command = [sys.executable, "-m", "vit.cli", "compare", *asked]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        logs = [tmp_path / "out" / name / "1.0" / "seed-7" / "train.log" for name in ("one", "other")]
        wait_until(lambda: all(log.is_file() and "epoch 3 of 200" in log.read_text() for log in logs))
        process.send_signal(signal.SIGTERM)
        _, said_last = process.communicate(timeout=60)
        assert process.returncode == 143
    assert said_last.splitlines()[-1] == "vit: stopped by SIGTERM; the same command continues the comparison"
    assert main(["compare", *asked]) == 0
    assert not any("epoch 2 of 200" in log.read_text().partition("epoch 3 of 200")[2] for log in logs)


def wait_until(holds: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("how", ["signal", "crash"])
def test_stopped_in_the_middle_and_continued_it_says_the_same(
    how: str,
    compared: Path,
    write: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = write("one"), write("other", OTHER)
    shutil.copytree(compared, tmp_path / "whole")
    assert compare(tmp_path / "whole", *files) == 0
    calls, log = [0], append_metrics

    def interrupt(*args: Any) -> None:
        calls[0] += 1
        if calls[0] == 40:  # a run logs 14 times
            if how == "crash":
                raise OSError("the disk is full")
            os.kill(os.getpid(), signal.SIGTERM)
        log(*args)

    with monkeypatch.context() as patch:
        patch.setattr(records, "append_metrics", interrupt)
        assert compare(tmp_path / "out", *files) == {"signal": 143, "crash": 1}[how]
    remedy = {"signal": "the same command continues the comparison", "crash": "the disk is full"}[how]
    assert remedy in capsys.readouterr().err
    stopped = [path.parent for path in (tmp_path / "out").rglob("config.yaml") if not _done(path.parent)]
    assert len(stopped) == 1
    assert not (tmp_path / "out" / "data_size.json").exists()
    trained = _watch(monkeypatch)
    assert compare(tmp_path / "out", *files) == 0
    assert said(tmp_path / "out") == said(tmp_path / "whole")
    assert trained == [(stopped[0], True), (tmp_path / "out" / "other" / "1.0" / "seed-7", False)]
    assert_same_bits(stopped[0], compared / stopped[0].relative_to(tmp_path / "out"))


def _done(run: Path) -> bool:
    return (run / "summary.json").is_file()


def _watch(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, bool]]:
    """Which runs are trained from now on, and whether they continue."""
    trained: list[tuple[Path, bool]] = []

    def watched(config: ClassificationRun, run: Path, *, resume: bool, origins: dict[str, str]) -> dict[str, Any]:
        trained.append((run, resume))
        return train(config, run, resume=resume, origins=origins)

    monkeypatch.setattr(planned_runs, "train", watched)
    return trained


def test_more_seeds_and_parts_train_only_what_is_missing(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = write("one"), write("other", OTHER)
    trained = _watch(monkeypatch)
    for parts, added in ((("1",), "1.0"), (("1", "0.1"), "0.1")):
        assert compare(tmp_path / "out", *recipes, parts=parts) == 0
        new = [(tmp_path / "out" / name / added / "seed-7", False) for name in ("one", "other")]
        assert trained[-2:] == new
    assert len(trained) == 4
    assert not (tmp_path / "out" / "earlier-1").exists(), "the earlier runs are among the later ones"
    assert compare(tmp_path / "out", *recipes, parts=("1",)) == 0
    before = json.loads((tmp_path / "out" / "earlier-1" / "data_size.json").read_text())
    assert len(before["runs"]) == 4
    assert (tmp_path / "out" / "earlier-1" / "data_size.png").is_file()
    assert compare(tmp_path / "out", write("one", OTHER), recipes[1], parts=("1",)) == 2
    assert len(trained) == 4


def test_settings_and_summaries_of_finished_runs_are_all_that_is_needed_to_go_on(
    compared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes = [compared.parent / f"{name}.yaml" for name in ("one", "copy", "other")]
    elsewhere = tmp_path / "elsewhere"
    for file in (*compared.rglob("config.yaml"), *compared.rglob("summary.json")):
        copy = elsewhere / file.relative_to(compared)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    trained = _watch(monkeypatch)
    assert compare(elsewhere, *recipes, seeds=2) == 0
    assert trained == []
    assert said(elsewhere) == said(compared)
    copy.write_text('{"seconds": ')
    assert compare(elsewhere, *recipes, seeds=2) == 2
    assert f"run: {str(copy)!r} is not JSON" in capsys.readouterr().err


def test_a_changed_recipe_is_refused_before_anything_is_trained(
    compared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "other.yaml"
    changed.write_text(OTHER.replace("ema_decay: 0.9", "ema_decay: 0.5"))
    trained = _watch(monkeypatch)
    assert compare(compared, compared.parent / "one.yaml", changed, parts=("0.05", "1")) == 2
    assert "train.ema_decay: 0.5 is not valid: the run in" in capsys.readouterr().err
    assert trained == []


def test_data_that_changed_between_runs_are_noticed(compared: Path) -> None:
    rows = json.loads((compared / "data_size.json").read_text())["runs"]
    planned_runs.check_same_images(rows)
    for fingerprint in ("other+" + rows[0]["data.fingerprint"].split("+")[1], rows[0]["data.fingerprint"] + "x"):
        changed = [*rows[:-1], rows[-1] | {"data.fingerprint": fingerprint}]
        with pytest.raises(ValueError, match=r"--output_dir: the data of '.*other/1\.0/seed-8' are not those"):
            planned_runs.check_same_images(changed)
    with pytest.raises(ValueError, match=r"--output_dir: the data of '.*other/1\.0/seed-8' are not those"):
        planned_runs.check_same_images([*rows[:-1], rows[-1] | {"test.n_total": rows[-1]["test.n_total"] + 1}])


def test_the_expected_end_counts_what_is_left_by_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert planned_runs._expected_end({}, ["a"]) == ""
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "localtime", lambda seconds: (1970, 1, 1, 0, int(seconds // 60), 0, 3, 1, 0))
    text = planned_runs._expected_end({"a": [60.0, 180.0], "b": [30.0]}, ["a", "b", "b", "unknown"])
    assert text == "; about 5 min left, until Thu 00:05"
    costs = {"a": [360.0], "b": [120.0]}
    assert planned_runs._expected_end(costs, ["a", "a", "b"], 2) == "; about 7 min left, until Thu 00:07"  # 14 of two
    assert planned_runs._expected_end(costs, ["a", "b"], 2) == "; about 6 min left, until Thu 00:06"  # one alone


def test_a_finished_run_is_not_taken_for_one_of_other_images(write: Callable[..., Path], tmp_path: Path) -> None:
    def recipe(root: str, **more: str) -> Path:
        section = ", ".join(f"{name}: {value}" for name, value in {"name": "imagefolder", "root": root, **more}.items())
        data = f"data: {{{section}, batch_size: 8, workers: 0, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}}"
        lines = ["augment: {}" if line.startswith("augment") else line for line in RECIPE.splitlines()]
        text = "\n".join(data if line.startswith("data") else line for line in lines)
        write("deep", text.replace("depth: 1", "depth: 2"))
        return write("own", text)

    for folder in ("pets", "flowers"):
        for part, count in (("train", 12), ("test", 3), ("other", 3)):
            make_folder(tmp_path / folder / part, {f"{folder}1": count, f"{folder}2": count})
    out = tmp_path / "out"
    assert compare(out, recipe(str(tmp_path / "pets")), tmp_path / "deep.yaml", parts=("1",)) == 0
    shutil.copytree(tmp_path / "pets", tmp_path / "moved")
    assert compare(out, recipe(str(tmp_path / "moved")), tmp_path / "deep.yaml", parts=("1",)) == 0, "the same images"
    for folder, more, said in (
        ("flowers", {}, "data.root: "),
        ("pets", {"test_folder": "other"}, "data.test_folder: 'other' is not valid"),
    ):
        changed = resolve_run(recipe(str(tmp_path / folder), **more))
        with pytest.raises(ValueError, match=rf"^{re.escape(said)}.*choose another --output_dir"):
            planned_runs.check_folders(plan_runs({"own": changed}, (1.0,), 1, out, (1.0,)))
    image = next((tmp_path / "pets" / "test").rglob("*.png"))
    shutil.copy(image, image.with_name("another.png"))
    changed = resolve_run(recipe(str(tmp_path / "pets")))
    with pytest.raises(ValueError, match=r"^data\.root: .* was tested on other images; choose another --output_dir"):
        planned_runs.check_folders(plan_runs({"own": changed}, (1.0,), 1, out, (1.0,)))
