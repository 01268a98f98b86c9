"""`vit doctor` and `vit export` from arguments to exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vit.cli import main

DOCTOR = ["doctor", "timm:test_vit.r160_in1k", "--random_weights", "--data", "fake", "--device", "cpu"]
FAKE = ["--data.fake_images", "40", "--data.fake_classes", "3", "--data.workers", "0"]


def test_the_doctor_prints_and_stores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "new" / "doctor.json"
    assert main([*DOCTOR, *FAKE, "--images", "4", "--output", str(output)]) == 0
    assert "blue, green, red" in capsys.readouterr().out
    assert {symptom["mistake"] for symptom in json.loads(output.read_text())["symptoms"]} >= {"mean and std left out"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["doctor", "nowhere"], "'nowhere' is not valid"),
        ([*DOCTOR, "--images", "0"], "--images: 0 is not valid"),
        ([*DOCTOR, "--data.mean", "0.1"], "data.mean"),
        (["export", "timm:test_vit", "--format", "tf", "--output", "x"], "--format"),
        (["export", "timm:test_vit", "--format", "torch", "--output", "x.onnx"], "must end in .pt2"),
        (["export", "timm:test_vit", "--format", "compiled", "--output", "x.onnx"], "must end in .pt2"),
        (["export", "nowhere", "--format", "compiled", "--precision", "fp16", "--output", "x.pt2"], "--precision"),
        (["export", "nowhere", "--format", "torch", "--output", "x.pt2"], "'nowhere' is not valid"),
    ],
)
def test_wrong_input_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]
