"""A run as its user sees it, with and without a terminal."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from tests.training.tiny import tiny
from vit.runs import read_metrics
from vit.settings import SHRUNK
from vit.training import display
from vit.training.loop import train
from vit.training.remaining import RemainingTime
from vit.training.session import open_session


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("no_figures")
def test_a_terminal_gets_a_bar_with_the_validation_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, errors = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "stderr", errors)
    train(tiny(train={"epochs": 2}), tmp_path / "run")
    assert "\rvit: " in errors.getvalue()
    shown = r"loss \S+, accuracy \S+%, \S+ images/s, val\.top1 \S+%"
    assert re.search(rf" s left, {shown}", errors.getvalue())
    assert re.search(rf" s in all, {shown}", errors.getvalue())
    assert "epoch 1" not in output.getvalue(), "the bar shows it"
    assert output.getvalue().startswith("model ")


@pytest.mark.usefixtures("no_figures")
def test_a_log_gets_a_line_an_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only validated epochs show a validation accuracy; a resumed run goes on counting."""
    train(tiny(train={"epochs": 3, "evaluate_every_epochs": 2}), tmp_path / "run")
    said = capsys.readouterr()
    epochs = [line for line in said.out.splitlines() if line.startswith("epoch ")]
    assert [line.split(":")[0] for line in epochs] == ["epoch 1 of 3", "epoch 2 of 3", "epoch 3 of 3"]
    assert ["val.top1" in line for line in epochs] == [False, True, True]
    assert [line.rpartition(" ")[2] for line in epochs] == ["left", "left", "all"]
    lines = [line for line in read_metrics(tmp_path / "run") if "train.loss" in line]
    for epoch, shown in enumerate(epochs):  # of 16, 16 and 5 images
        mean = sum(line["train.loss"] * weight for line, weight in zip(lines[3 * epoch :], (16, 16, 5), strict=False))
        assert float(shown.partition("loss ")[2].split(",")[0].split()[0]) == pytest.approx(mean / 37, abs=6e-5)
    assert "\r" not in said.out + said.err


@pytest.mark.usefixtures("no_figures")
def test_a_long_first_epoch_says_how_long_the_run_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "SECONDS_BEFORE_ESTIMATE", 0.0)
    train(tiny(train={"epochs": 2}), tmp_path / "run")
    said = capsys.readouterr().out
    assert len(re.findall(r"^epoch \d of 2: \S+ images/s, about .+ left$", said, re.MULTILINE)) == 1
    assert said.index("epoch 1 of 2: ") < said.index("about") < said.index("epoch 1 of 2: loss")


def test_the_remaining_time_weighs_growing_images_and_leaves_the_first_step_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps an epoch of images of 4, 4, 8 and 8 pixels, so 3, 3, 7.5 and 7.5 units of work; a unit takes 2 s."""
    config = tiny(
        train={"epochs": 4},
        augment={"first_image_size": 4, "growing_epochs": 2},
    )
    session, clock = open_session(config, tmp_path / "run"), 0.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    remaining, progress = RemainingTime(session), session.progress

    def take_step(seconds: float) -> None:
        nonlocal clock
        clock += seconds
        progress.seconds += seconds
        progress.step_in_epoch += 1
        remaining.step_taken()

    take_step(100.0)
    assert remaining.measured == 0.0
    assert remaining.seconds() == pytest.approx(100.0 * 20), "it is all that is known"
    take_step(2.0)
    assert remaining.measured == 2.0
    assert remaining.seconds() == pytest.approx(2.0 * 19)
    take_step(2.0)
    clock += 5.0  # a validation
    progress.epoch, progress.step_in_epoch = 1, 0
    assert remaining.seconds() == pytest.approx(2.0 * 18 + 5.0 * 3)
    assert remaining.elapsed == 109.0
    remaining.epoch_begun()
    take_step(3.0)
    assert remaining.seconds() == pytest.approx(3.0 * 17 + 5.0 * 3), "the machine may have become slower"


def test_the_remaining_time_counts_the_validations_to_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten epochs every fourth and the last are validated; continued two epochs before the first of them."""
    session = open_session(tiny(train={"epochs": 10, "evaluate_every_epochs": 4}), tmp_path / "run")
    clock, progress = 0.0, session.progress
    monkeypatch.setattr("time.monotonic", lambda: clock)
    progress.epoch = 2
    remaining = RemainingTime(session)
    for epoch, validation in ((3, 0.0), (4, 60.0)):
        for _ in range(3):
            clock += 1.0
            progress.seconds += 1.0
            progress.step_in_epoch += 1
            remaining.step_taken()
        clock += validation
        progress.epoch, progress.step_in_epoch = epoch, 0
        assert remaining.seconds() == pytest.approx(3.0 * (10 - epoch) + (120.0 if validation else 0.0))


@pytest.mark.usefixtures("no_figures")
def test_the_header_is_five_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tiny(train={"epochs": 1}), tmp_path / "run")
    rows = capsys.readouterr().out.splitlines()[:6]
    assert [row.split()[0] for row in rows] == ["model", "images", "steps", "device", "run", "epoch"]
    assert re.search(r"; [\d,]+ parameters; 35\.4 k multiply-adds$", rows[0])


def test_a_header_says_what_is_frozen_and_ends_with_notes(tmp_path: Path) -> None:
    config = tiny()
    session = open_session(config, tmp_path / "run")
    for name, parameter in session.unwrapped_model.named_parameters():
        parameter.requires_grad_(not name.startswith("blocks."))
    rows = display.header(session, {"optim.warmup_epochs": SHRUNK})
    assert re.search(r" parameters, [\d,]+ of them trained; ", rows["model"])
    assert list(rows)[-1] == "shrunk"
