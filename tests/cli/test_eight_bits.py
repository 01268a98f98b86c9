"""`--dtype int8`: predictions of the eight-bit copy, under names of their own, and never those of the model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.tiny import tiny
from vit.cli import main
from vit.hub import open_model
from vit.layers.quantized import quantizes_here
from vit.training.loop import train

pytestmark = pytest.mark.skipif(not quantizes_here(), reason="no x86 processor, or a torch without oneDNN")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "first"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
        train(tiny(train={"epochs": 2}), folder)
    return folder


def logits(file: Path) -> np.ndarray:
    with np.load(file) as stored:
        return np.asarray(stored["logits"])


def test_eval_keeps_both(run: Path) -> None:
    assert main(["eval", str(run)]) == 0
    assert main(["eval", str(run), "--dtype", "int8"]) == 0
    exact, rounded = (next((run / "predictions").glob(f"*_best_auto{end}.npz")) for end in ("", "_int8"))
    difference = np.abs(logits(exact) - logits(rounded)).max()
    assert 0 < difference < 0.1 * np.abs(logits(exact)).max()


def test_a_model_is_compared_with_its_own_eight_bits(run: Path, tmp_path: Path) -> None:
    words = ["compare", str(run), str(run), "--dtype", "auto", "int8", "--speed", "--output_dir", str(tmp_path)]
    assert main(words) == 0
    first, second = json.loads((tmp_path / "comparison.json").read_text())["models"]
    assert second["name"].endswith(" · int8")
    assert second["identity"] == f"{first['identity']}-int8"
    assert (first["params"], first["gmacs"]) == (second["params"], second["gmacs"])
    assert second["images_per_second"] > 0
    files = sorted((tmp_path / "predictions").glob("*-int8_*.npz"))
    assert files
    assert second["predictions"] == "computed"


def test_predictions_of_eight_bits(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    images = tmp_path / "images"
    images.mkdir()
    Image.new("RGB", (8, 8), "red").save(images / "red.png")
    said = []
    for dtype in ("auto", "int8"):
        assert main(["predict", str(run), str(images / "red.png"), "--format", "json", "--dtype", dtype]) == 0
        said.append(capsys.readouterr().out)
        assert main(["predict", str(run), str(images), "--output", f"{tmp_path}/{dtype}.csv", "--dtype", dtype]) == 0
    assert said[0] != said[1]
    assert (tmp_path / "auto.csv").read_text() != (tmp_path / "int8.csv").read_text()


def test_eight_bits_are_computed_on_the_cpu_alone(run: Path) -> None:
    opened = open_model(run, dtype="int8")
    with pytest.raises(ValueError, match=r"device: 'meta' is not valid: eight bits .* give --device cpu"):
        opened.module_on(torch.device("meta"))
    assert opened.module_on(torch.device("cpu")) is opened.module_on(torch.device("cpu"))


def test_the_record_says_so(run: Path) -> None:
    (file,) = (run / "predictions").glob("*_int8.json")
    assert json.loads(file.read_text())["dtype"] == "int8"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval", "resnet18", "--random_weights", "--data", "digits", "--dtype", "int8"], "ResNet has no blocks"),
        (["eval", "RUN", "--baseline", "RUN", "--dtype", "int8"], "use `vit compare "),
        (
            ["compare", "RUN", "RUN", "--dtype", "int8", "auto", "int8"],
            "give one dtype, or one for each of the 2",
        ),
        (["predict", "RUN", "x.png", "--dtype", "int4"], "invalid choice: 'int4'"),
    ],
)
def test_what_has_no_eight_bits_is_said(
    run: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run) if word == "RUN" else word for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
