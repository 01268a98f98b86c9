"""The two commands under `accelerate launch`: end to end, two gloo processes against one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.training.tiny import RANDOM, tiny
from vit.evaluation.predictions import Predictions
from vit.runs import read_metrics
from vit.settings import dump_run_config

ROOT = Path(__file__).parents[2]
CONFIG = tiny(
    **RANDOM,
    data={"fake_images": 4 * 101},  # the test set has 101 images, a prime
    train={"epochs": 2, "ema_decay": 0.9},
)
LAUNCH = ["-m", "accelerate.commands.launch", "--num_processes", "2", "--cpu"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def call(folder: Path, words: list[str]) -> str:
    """Run one command with a cache of its own (no `accelerate config`), and return what it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "HF_HOME": str(folder / "hf")}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("launch")
    (folder / "recipe.yaml").write_text(dump_run_config(CONFIG, {}))
    words = ["--config", str(folder / "recipe.yaml"), "--output_dir"]
    call(folder, ["train.py", *words, str(folder / "one")])
    call(folder, [*LAUNCH, "train.py", *words, str(folder / "two")])
    return folder / "one", folder / "two"


@pytest.mark.slow
def test_training_losses_are_equal_to_rounding(runs: tuple[Path, Path]) -> None:
    one, two = ([record["train.loss"] for record in read_metrics(run) if "train.loss" in record] for run in runs)
    assert len(one) == len(two) == 2 * 23
    assert two[:10] == pytest.approx(one[:10], rel=1e-4)


@pytest.mark.slow
def test_both_saw_everything(runs: tuple[Path, Path]) -> None:
    one, two = (json.loads((run / "summary.json").read_text()) for run in runs)
    assert (one["processes"], two["processes"]) == (1, 2)
    for name in ("images_seen", "steps", "test.n_seen", "test.n_total", "params", "data.fingerprint"):
        assert one[name] == two[name], name
    assert one["test.n_seen"] == 101
    assert abs(one["test.top1"] - two["test.top1"]) < 0.1
    for first, second in zip(read_metrics(runs[0]), read_metrics(runs[1]), strict=True):
        assert first["step"] == second["step"]
        assert first.get("val.n_seen") == second.get("val.n_seen")


@pytest.mark.slow
def test_one_checkpoint_gives_the_same_integers(runs: tuple[Path, Path], tmp_path: Path) -> None:
    answers = []
    for launcher, name in (([], "one"), (LAUNCH, "two"), (TORCHRUN, "torchrun")):
        words = ["eval.py", str(runs[0]), "--output_dir", str(tmp_path / name)]
        printed = json.loads(call(tmp_path, [*launcher, *words]))
        assert printed["n_seen"] == printed["n_total"] == 101
        answers.append((printed["top1"], Predictions.load(next((tmp_path / name).glob("*.npz")))))
    for (top1, found), (expected_top1, expected) in pairwise(answers):
        assert top1 == expected_top1
        assert (found.indices == expected.indices).all()
        assert (found.logits.argmax(axis=1) == expected.logits.argmax(axis=1)).all()
        assert abs(found.logits - expected.logits).max() < 1e-5
