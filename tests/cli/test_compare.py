"""`vit compare`: its arguments, and one line for every error."""

from __future__ import annotations

from pathlib import Path

import pytest

from vit.cli import main
from vit.cli.parsing import split_settings


def test_settings_are_told_from_models_wherever_they_stand() -> None:
    words = ["--data.workers", "0", "a", "--data", "digits", "b", "--data.root=x", "--images", "9"]
    assert split_settings(words) == (
        ["--data.workers", "0", "--data.root=x"],
        ["a", "--data", "digits", "b", "--images", "9"],
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: MODEL"),
        (["timm:test_vit", "--data", "digits"], "MODEL: give at least two models to compare, not timm:test_vit alone"),
        (["timm:a", "timm:b", "--data", "digits", "--outputdir", "x"], "--outputdir x; did you mean --output_dir?"),
        (["timm:a", "timm:b", "--data", "digits", "--output", "x"], "--output x; did you mean --output_dir?"),
        (["timm:test_vit", "timm:test_resnet"], "--data: required: no model is a training run"),
        (
            ["timm:test_vit", "x", "--data", "digits"],
            "model: 'x' is not valid: it is neither a run or checkpoint folder",
        ),
        (
            ["timm:a", "timm:b", "--data", "digit"],
            "--data: 'digit' is not valid: it is neither a folder nor one of dig",
        ),
        (["timm:a", "timm:b", "--data", "digits", "--data.mean", "[0,0,0]"], "--data.mean: it has no effect here"),
        (["timm:a", "timm:b", "--data", "digits", "--resamples", "99"], "--resamples: 99 is not valid: it must be at"),
        (
            ["timm:a", "timm:b", "--data", "digits", "--transfer", "--speed_batch_size", "2"],
            "--speed_batch_size: 2 is not valid: --transfer compares features, not heads",
        ),
        (["timm:a", "timm:b", "--data", "digits", "--random_weights"], "timm has no model 'a'"),
        (
            ["timm:test_vit", "timm:test_resnet", "--data", "digits", "--device", "tpu"],
            "device: 'tpu' is not valid: choose from auto, cpu, cuda, mps",
        ),
    ],
)
def test_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["compare", *words, "--output_dir", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
    assert list(tmp_path.iterdir()) == []
