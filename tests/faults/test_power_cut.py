"""What was not synced is lost in a power cut: a continued run ends with the same bits and its whole history."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from tests.faults.power_cut import Disk
from tests.training.tiny import RANDOM, assert_same_bits, timeless, tiny
from vit.config import RunConfig
from vit.runs import (
    Checkpoint,
    append_metrics,
    flush_tree,
    last_checkpoint,
    make_folder,
    read_checkpoint,
    read_metrics,
    restore_metrics,
    write_checkpoint,
    write_json,
)
from vit.settings import resumed_run
from vit.training.loop import train

CONFIG = tiny(**RANDOM, train={"epochs": 3, "ema_decay": 0.9, "save_every_steps": 2})


def train_and_cut(config: RunConfig, run: Path, copies: Path, moments: set[int], seed: int) -> tuple[list[Path], int]:
    """Train (or continue) `run`; what a cut at each of these moments leaves, and the number of moments there were."""
    disk, chance, left = Disk(run.parent), random.Random(seed), list[Path]()

    def at_event(number: int) -> None:
        if number in moments:
            left.append(copies / f"{number}")
            disk.after_cut(left[-1], chance)

    copies.mkdir()
    with disk.watched(at_event):
        train(config, run, resume=(run / "config.yaml").exists())
    return [folder / run.name for folder in left], disk.events


def is_whole(run: Path, unbroken: Path) -> None:
    assert_same_bits(unbroken, run)
    lines, expected = ((folder / "metrics.jsonl").read_text().splitlines() for folder in (run, unbroken))
    assert [timeless(json.loads(line)) for line in lines] == [timeless(json.loads(line)) for line in expected]
    assert json.loads((run / "summary.json").read_text())["steps"] == 9


@pytest.fixture
def unbroken(tmp_path: Path) -> tuple[Path, int]:
    (tmp_path / "unbroken").mkdir()
    run = tmp_path / "unbroken" / "run"
    _, events = train_and_cut(CONFIG, run, tmp_path / "no-cuts", set(), 0)
    return run, events


def continue_cut_run(run: Path, copies: Path, unbroken: Path, again: set[int]) -> list[Path]:
    if (run / "config.yaml").exists():  # otherwise the name of the file was lost, and the run is started again
        assert resumed_run(run).config == CONFIG
    run.parent.mkdir(exist_ok=True)
    left, _ = train_and_cut(CONFIG, run, copies, again, 7)
    is_whole(run, unbroken)
    return left


@pytest.mark.parametrize("cuts", [9, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.exhaustive])])
@pytest.mark.usefixtures("no_figures")
def test_a_run_continues_from_any_power_cut(tmp_path: Path, unbroken: tuple[Path, int], cuts: int) -> None:
    expected, events = unbroken
    chance = random.Random(2026)
    cut = tmp_path / "cut"
    cut.mkdir()
    moments = set(chance.sample(range(1, events + 1), cuts))
    left, _ = train_and_cut(CONFIG, cut / "run", tmp_path / "left", moments, 5)
    assert len(left) == cuts
    resumed = 0
    for number, run in enumerate(left):
        resumed += last_checkpoint(run) is not None
        copies = tmp_path / f"again-{number}"
        for again in continue_cut_run(run, copies, expected, {chance.randint(5, 60)} if number % 3 == 0 else set()):
            continue_cut_run(again, tmp_path / f"third-{number}", expected, set())
    assert resumed > cuts / 2, "too few cuts came after the first checkpoint"


@pytest.mark.usefixtures("no_figures")
def test_a_lost_line_comes_back_from_the_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = tmp_path / "run"
    train(CONFIG, run)
    path = last_checkpoint(run)
    assert path is not None
    whole = read_metrics(run)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(lines[:2] + lines[3:-1]) + "\n")
    append_metrics(run, {"step": 99})
    restore_metrics(run, 9, path)
    assert read_metrics(run) == whole
    assert f"{len(whole) - 2} lines up to step 9, and there {len(whole)}" in caplog.text
    caplog.clear()
    append_metrics(run, {"step": 99})
    restore_metrics(run, 9, path)
    assert read_metrics(run) == whole
    assert not caplog.text


def test_what_was_written_is_there_after_the_worst_of_cuts(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    disk, run = Disk(tmp_path / "disk"), tmp_path / "disk" / "new" / "run"
    with disk.watched(lambda _: None):
        make_folder(run)
        append_metrics(run, {"step": 3})
        write_checkpoint(run, 3, Checkpoint({"value": 5}, {"model": {"weight": torch.ones(2)}}))
        write_json(run / "summary.json", {"top1": 0.5})
        (run / "figures").mkdir()
        (run / "figures" / "a.png").write_bytes(b"drawn")
        flush_tree(run)
        (run / "figures" / "b.png").write_bytes(b"drawn later")
        disk.after_cut(tmp_path / "left", None)
    left = tmp_path / "left" / "new" / "run"
    saved = last_checkpoint(left)
    assert saved is not None
    assert read_checkpoint(saved).state == {"value": 5}
    assert read_metrics(left) == read_metrics(saved) == [{"step": 3}]
    assert json.loads((left / "summary.json").read_text()) == {"top1": 0.5}
    assert [(file.name, file.read_bytes()) for file in (left / "figures").iterdir()] == [("a.png", b"drawn")]


def test_a_checkpoint_counts_when_its_name_is_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    with disk.watched(lambda _: None):
        for step in (1, 2, 3):
            write_checkpoint(tmp_path / "disk" / "run", step, Checkpoint({"step": step}))
        write_json(tmp_path / "disk" / "run" / "summary.json", {"steps": 3})
        disk.after_cut(tmp_path / "left", None)
    saved = last_checkpoint(tmp_path / "left" / "run")
    assert saved is not None
    assert saved.name == "step-00000003"
    assert (tmp_path / "left" / "run" / "summary.json").exists()
