"""SIGKILL at random moments, also during a save: the resumed run ends with the bits of one that nobody touched."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.test_runs import assert_no_pickle
from tests.training.tiny import RANDOM, assert_same_bits, tiny
from vit.runs import verify_checkpoint
from vit.settings import dump_run_config
from vit.tasks.classification.config import ClassificationRun

TRIALS = 20
CONFIG = tiny(
    **RANDOM,
    data={"fake_images": 320, "cache_gib": 0.0},
    train={"epochs": 3, "ema_decay": 0.99, "save_every_steps": 3, "log_every_steps": 5},
)
"""Nothing is kept in memory, so that images stream through workers where there are any; 18 steps an epoch."""


def command(config: Path, run: Path, workers: int, resume: bool) -> list[str]:
    words = ["train", "--config", str(config), "--output_dir", str(run), "--data.workers", str(workers)]
    return [sys.executable, "-m", "vit.cli", *words, *(["--resume"] if resume else [])]


def start(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    with log.open("ab") as stream:
        return subprocess.Popen(words, stdout=stream, stderr=stream, env=environment, start_new_session=True)


def complete(words: list[str], log: Path) -> None:
    assert start(words, log).wait(timeout=180) == 0, log.read_text()


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kill") / "recipe.yaml"
    path.write_text(dump_run_config(CONFIG, {}))
    return path


@pytest.fixture(scope="module")
def unbroken(recipe: Path) -> Path:
    run = recipe.parent / "unbroken"
    complete(command(recipe, run, 0, resume=False), recipe.parent / "unbroken.log")
    return run


def kill_at(process: subprocess.Popen[bytes], run: Path, chance: random.Random, during_save: bool) -> str:
    """Wait for a random moment after training began, kill the process and its workers, and say where it was."""
    saved = run / "checkpoints"
    wanted = chance.randint(1, 15)
    deadline = time.monotonic() + 120
    seen: set[str] = set()
    while process.poll() is None and time.monotonic() < deadline:
        seen |= {path.name for path in saved.glob("step-*")}
        if len(seen) >= wanted - 1 and (not during_save or any(saved.glob(".writing-*"))):
            break
        time.sleep(0.0005)
    if not during_save:
        time.sleep(chance.random() * 0.3)
    state = "during a save" if during_save else "at any moment"
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        state = "after its end"
    process.wait(timeout=30)
    leftovers = [path.name for path in saved.glob(".*")] if saved.is_dir() else []
    return f"{state}, {len(seen)} saves in, left behind: {leftovers or 'nothing'}"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_twenty_kills(recipe: Path, unbroken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(2024)
    equal, lines = 0, []
    for trial in range(TRIALS):
        workers, during_save = (0, 2)[trial % 2], trial % 4 >= 2
        run = recipe.parent / f"trial-{trial}"
        log = recipe.parent / f"trial-{trial}.log"
        process = start(command(recipe, run, workers, resume=False), log)
        where = kill_at(process, run, chance, during_save)
        complete(command(recipe, run, workers, resume=True), log)
        same = _is_equal(unbroken, run)
        equal += same is None
        lines.append(f"trial {trial}, {workers} workers, killed {where}: {'equal' if same is None else same}")
    with capsys.disabled():
        print("", *lines, f"{equal} of {TRIALS} bitwise equal", sep="\n", file=sys.stderr)  # -n shows no other
    assert equal == TRIALS
    assert sum("'.writing" in line for line in lines) >= 3, "too few kills fell into a save"


def _is_equal(unbroken: Path, run: Path) -> str | None:
    """None, or what differs."""
    try:
        assert_same_bits(unbroken, run)
        for folder in (run / "checkpoints").iterdir():
            verify_checkpoint(folder)
        assert_no_pickle(run)
    except (AssertionError, ValueError) as error:
        return str(error).splitlines()[0]
    return None


def test_the_run_that_is_killed_uses_everything() -> None:
    assert isinstance(CONFIG, ClassificationRun)
    assert CONFIG.augment.mixes
    assert CONFIG.train.ema_decay is not None
    assert CONFIG.data.cache_gib == 0
