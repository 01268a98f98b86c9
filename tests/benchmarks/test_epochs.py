"""Epochs that fit into a time: steps timed by a clock of the test, in whole groups, at every size of the images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import epochs
from benchmarks.epochs import FEWEST_EPOCHS, as_options, nearest_epochs, said_of_fewest
from vit.settings import resolve_run

EPOCHS_BY_SIZE = {16: 1, 32: 3}
SECONDS_BY_SIZE = {16: 1.0, 32: 2.0}
"""Of a step."""
AUGMENTING, COMPILING = 5.0, 1000.0
"""Seconds that augmenting a group takes, and the first step at each size."""


@pytest.mark.parametrize(
    ("steps_per_epoch", "together", "groups_a_step"),
    [
        (40, 1, 1),
        (40, 4, 1 / 4),
        (40, 6, 1 / 6),
        (90, 30, 1 / 30),
        (100, 30, 1 / 30),
        (50, 30, 2 / 50),  # too few are left after the first group: all of an epoch
        (12, 12, 1 / 12),
        (5, 4, 2 / 5),
    ],
)
def test_an_epoch_is_the_mean_over_sizes_of_steps_in_whole_groups(
    steps_per_epoch: int, together: int, groups_a_step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, compiled, group = 0.0, set[int](), {"lr_scale": 1.0}
    augment = SimpleNamespace(epochs_by_size=lambda _: EPOCHS_BY_SIZE)
    loader = SimpleNamespace(steps_per_epoch=steps_per_epoch, augment=augment, steps_together=1)
    session: Any = SimpleNamespace(
        task=SimpleNamespace(train_loader=loader),
        config=SimpleNamespace(train=SimpleNamespace(epochs=4), data=SimpleNamespace(batch_size=8)),
        progress=SimpleNamespace(),
        optimizers=[SimpleNamespace(param_groups=[group])],
    )

    def steps(_: Any) -> Iterator[int]:
        nonlocal now
        size = 16 if session.progress.epoch < EPOCHS_BY_SIZE[16] else 32
        for step in range(session.progress.step_in_epoch, steps_per_epoch):
            if step % together == 0:
                loader.steps_together = min(together, steps_per_epoch - step)
                now += AUGMENTING
            now += SECONDS_BY_SIZE[size] + COMPILING * (size not in compiled)
            compiled.add(size)
            session.progress.step_in_epoch = step + 1
            yield step

    monkeypatch.setattr(epochs, "Classification", SimpleNamespace)
    monkeypatch.setattr(epochs, "steps", steps)
    monkeypatch.setattr(epochs, "time", SimpleNamespace(perf_counter=lambda: now))
    expected = steps_per_epoch * ((1 * 1.0 + 3 * 2.0) / 4 + AUGMENTING * groups_a_step)
    assert epochs.seconds_of(session) == pytest.approx(expected)
    assert group["lr_scale"] == 0.0  # a recipe that would diverge is timed too


def test_only_numbers_are_shares_of_the_epochs() -> None:
    settings = {"data.root": "2024/07", "growing_epochs": "1/2", "optim.clip_norm": "1/4", "train.class_weights": "1/3"}
    assert as_options(settings, 12) == [
        "--train.epochs=12",
        "--data.root=2024/07",
        "--growing_epochs=6",
        "--optim.clip_norm=3",
        "--train.class_weights=1/3",
    ]


def test_a_share_of_nothing_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("{}")
    with pytest.raises(ValueError, match=r"augment\.growing_epochs: '1/0' is not valid: it must be"):
        resolve_run(tmp_path / "own.yaml", as_options({"augment.growing_epochs": "1/0"}, 12))


@pytest.mark.parametrize(
    ("minutes", "fitting", "said"),
    [(1.0, 2, ""), (0.75, 2, ""), (0.5, 2, " (the minutes hold 1.0 epochs; 2 is"), (2.0, 4, "")],
)
def test_fewer_epochs_than_are_trained_are_told(minutes: float, fitting: int, said: str) -> None:
    assert nearest_epochs(minutes, 30.0) == fitting >= FEWEST_EPOCHS
    assert said_of_fewest(minutes, 30.0).startswith(said)
    assert bool(said_of_fewest(minutes, 30.0)) == bool(said)
