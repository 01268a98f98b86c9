"""Accuracy of a trained model's copies and files against the model's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import deployed
from benchmarks.__main__ import main
from tests.training.tiny import tiny
from vit.config import DataConfig
from vit.models.inference import for_inference
from vit.models.model import Model
from vit.training.loop import train

pytestmark = pytest.mark.filterwarnings("ignore:::torch|onnxscript|copyreg", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    digits = DataConfig(name="digits", batch_size=32, workers=0, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    train(replace(tiny(), data=digits), folder)
    return folder


@pytest.mark.slow
def test_every_form_is_compared_with_the_model(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    file = tmp_path / "deployed.json"
    assert main(["deployed", str(run), "--images", "60", "--sensitivity", "20", "--output", str(file)]) == 0
    found = json.loads(file.read_text())
    assert list(found["forms"]) == ["vit bf16", "vit int8", "ONNX", "ONNX int8"]
    for row in found["forms"].values():
        low, high = row["interval"]
        assert low < row["difference"] < high
        assert row["top1"] == pytest.approx(found["top1"] + row["difference"])
    assert found["forms"]["ONNX"]["agreement"] == 1
    assert found["sensitivity"]["num_images"] == 20


def test_what_a_copy_gets_wrong_is_counted(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(model: Model, dtype: Any) -> Model:
        copy = for_inference(model, dtype, packed=False)
        with torch.no_grad():
            copy.get_parameter("head.bias")[0] += 1000  # it answers with the first class
        return copy

    monkeypatch.setattr(deployed, "COPIES", {"damaged": torch.float32})
    monkeypatch.setattr(deployed, "FILES", {})
    monkeypatch.setattr(deployed, "for_inference", damaged)
    found = deployed.measure_deployed(str(run), DataConfig(name="digits"), images=50)
    row = found["forms"]["damaged"]
    assert row["top1"] == pytest.approx(0.1), "of ten classes, balanced"
    assert row["difference"] == pytest.approx(row["top1"] - found["top1"])
    assert row["interval"][1] < 0
