"""The loop that frozen features are compared with, and the measure of a process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
from PIL import Image
from safetensors.torch import save_file

from benchmarks.plain_transfer import main
from benchmarks.whole_process import run_process


def test_the_plain_loop_tells_two_classes_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(0)
    for part in ("train", "test"):
        for name, level in (("bright", 200), ("dark", 20)):
            (tmp_path / part / name).mkdir(parents=True)
            for place in range(20):
                pixels = level + draw.integers(0, 40, (20, 30, 3))
                Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / part / name / f"{place}.png")
    save_file(timm.create_model("test_vit", num_classes=0).state_dict(), tmp_path / "weights.safetensors")
    words = [str(tmp_path / name) for name in ("weights.safetensors", "train", "test")]
    main(["test_vit", *words, "30", "10", "32"])
    printed = json.loads(capsys.readouterr().out)
    assert (printed["knn"], printed["linear_probe"]) == (1.0, 1.0)
    assert min(printed["seconds"].values()) > 0


def test_a_process_is_measured_whole() -> None:
    measured, printed = run_process(
        [sys.executable, "-c", "import time; time.sleep(0.2); print(len(bytearray(2**27)))"]
    )
    assert printed == f"{2**27}\n"
    assert measured["seconds"] > 0.2
    assert 0.125 < measured["memory"] < 4


def test_a_process_that_fails_is_an_error_with_its_last_line() -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        run_process([sys.executable, "-c", "raise SystemExit('no such thing')"])
