"""What `vit convert --to hf` writes, as transformers' pipeline for image classification uses it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.training.tiny import tiny
from tests.weights.hf_models import CASES, saved
from vit.cli import main
from vit.config import Preprocessing
from vit.hub import OpenedModel, open_model
from vit.libraries.image_processors import preprocessing_of, processor_of
from vit.models import VisionTransformer
from vit.prediction.classify import classify_images
from vit.training.loop import train

transformers = pytest.importorskip("transformers", reason="needs the extra 'text'")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
CLASSIFIERS = [name for name in CASES if "ForImageClassification" in name and "Siglip" not in name]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Enlarged, shrunk, wide and tall; the last one is stored lying on its side."""
    folder, draw, paths = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0), []
    for number, (height, width) in enumerate([(7, 6), (90, 44), (31, 60), (40, 80)]):
        small = Image.fromarray(draw.integers(0, 256, (6, 5, 3), dtype=np.uint8))
        paths.append(folder / f"{number}.png")
        exif = Image.Exif()
        exif[0x0112] = 6 if number == 3 else 1
        small.resize((width, height), Image.Resampling.BICUBIC).save(paths[-1], exif=exif)
    return paths


def from_pipeline(folder: Path, paths: list[Path], **options: Any) -> list[dict[str, float]]:
    classify = transformers.pipeline("image-classification", str(folder), device="cpu", **options)
    return [{row["label"]: row["score"] for row in rows} for rows in classify([str(p) for p in paths], top_k=100)]


def check_same(opened: OpenedModel, folder: Path, paths: list[Path]) -> None:
    """Exactly with PIL, as here; the pipeline itself resizes by torchvision, whose pixels are rounded otherwise."""
    ours = [dict(rows) for _, rows in classify_images(opened, paths, "cpu", top_k=100)]
    exact = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    for options, tolerance in (({"image_processor": exact}, 1e-5), ({}, 0.02)):
        for found, expected in zip(from_pipeline(folder, paths, **options), ours, strict=True):
            assert found.keys() == expected.keys()
            assert found == pytest.approx(expected, abs=tolerance)


def test_a_run_gives_the_same_probabilities(
    photographs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    run = tmp_path / "run"
    train(tiny(train={"epochs": 3}, data={"crop_fraction": 0.8, "mean": (0.4, 0.5, 0.6)}), run)
    assert main(["convert", str(run), "--to", "hf", "--output", str(tmp_path / "hf")]) == 0
    assert "a pixel further up or left" in capsys.readouterr().out
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["id2label"]["1"] == "pattern 1"
    same_crop = [photographs[1], photographs[3]]  # of the others an odd number of pixels is cut off
    check_same(open_model(str(run)), tmp_path / "hf", same_crop)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_librarys_classifier_gives_the_same_probabilities(name: str, photographs: list[Path], tmp_path: Path) -> None:
    """Through our names and back, with preprocessing and classes that it did not have."""
    theirs, written = str(tmp_path / "theirs"), tmp_path / "hf"
    saved(CASES[name], tmp_path / "theirs")
    first = open_model(theirs, implementation="ours")
    assert isinstance(first.model, VisionTransformer)
    height, width = first.model.config.image_size
    content = {"image_processor_type": "ViTImageProcessor", "size": {"height": height, "width": width}}
    (tmp_path / "theirs" / "preprocessor_config.json").write_text(json.dumps(content))
    names = [f"class {number}" for number in range(first.num_classes)]
    assert main(["convert", theirs, "--to", "hf", "--output", str(written), "--class_names", *names]) == 0
    check_same(open_model(theirs, implementation="ours", class_names=names), written, photographs)


PREPARED = {
    "squashed": Preprocessing(image_size=(24, 36), squash=True, interpolation="bilinear"),
    "squashed and cropped": Preprocessing(image_size=(24, 36), squash=True, crop_fraction=0.75),
    "cropped": Preprocessing(image_size=(32, 32), crop_fraction=0.875, crop_rounding="down", std=(0.2, 0.3, 0.4)),
    "nearest": Preprocessing(image_size=(8, 8), interpolation="nearest"),
}


@pytest.mark.parametrize("prepared", PREPARED.values(), ids=list(PREPARED))
def test_what_is_written_is_read_again(prepared: Preprocessing) -> None:
    found = preprocessing_of(processor_of(prepared), "written")
    assert found == replace(prepared, crop_rounding="down", crop_fraction=found.crop_fraction)
    for side in prepared.image_size:
        assert math.floor(side / found.crop_fraction) == math.floor(side / prepared.crop_fraction)


@pytest.mark.parametrize(
    ("prepared", "said"),
    [
        (Preprocessing(image_size=(8, 8), antialias=False), "data.antialias: False"),
        (Preprocessing(image_size=(8, 8), channel_order="bgr"), "channel_order: 'bgr'"),
        (Preprocessing(image_size=(8, 12)), r"model.image_size: \(8, 12\)"),
    ],
)
def test_what_no_class_does_is_said(prepared: Preprocessing, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        processor_of(prepared)
