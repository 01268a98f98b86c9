"""Exported files run on their own, at any batch size; an unfinished file never has the final name."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vit import create_model
from vit.config import Preprocessing
from vit.evaluation import export as room
from vit.evaluation.export import check_export, export_classifier
from vit.hub import OpenedModel
from vit.libraries import NEVER_TRAINED

pytestmark = pytest.mark.filterwarnings("ignore:::torch|onnxscript|copyreg", "ignore::DeprecationWarning")


def opened(model: nn.Module, size: tuple[int, int] = (16, 24)) -> OpenedModel:
    return OpenedModel(
        name="m",
        source="runs/m",
        model=model,
        provenance=NEVER_TRAINED,
        stated_preprocessing=Preprocessing(image_size=size),
        class_names=["a", "b", "c"],
        num_classes=3,
    )


def small_vit(**options: Any) -> nn.Module:
    """With a head that answers: its first values are zeros."""
    model = create_model(
        "vit", image_size=(16, 24), patch_size=8, width=24, depth=2, num_heads=3, num_classes=3, **options
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"positions": "rope", "num_registers": 2, "pooling": "gap"}, marks=pytest.mark.slow)],
)
def test_torchs_file_answers_like_the_model_at_any_batch_size(tmp_path: Path, options: dict[str, Any]) -> None:
    model, path = small_vit(**options), tmp_path / "new" / "model.pt2"
    found = export_classifier(opened(model.train()), "torch", path)
    assert set(found.differences) == {1, 3}
    assert max(found.differences.values()) < 1e-4
    assert found.largest_logit > 0.1
    alone = torch.export.load(path).module()
    images = torch.rand(5, 3, 16, 24)
    torch.testing.assert_close(alone(images), model.eval()(images))
    said = json.loads((tmp_path / "new" / "model.pt2.json").read_text())
    assert said["input"]["shape"] == ["batch", 3, 16, 24]
    assert said["preprocessing"]["mean"] == [0.5, 0.5, 0.5]
    assert said["class_names"] == ["a", "b", "c"]
    assert sorted(file.name for file in path.parent.iterdir()) == ["model.pt2", "model.pt2.json"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_onnx_answers_like_the_model(tmp_path: Path, kind: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = small_vit() if kind == "vit" else create_model("resnet18_cifar", width=8, num_classes=3)
    path = tmp_path / "model.onnx"
    found = export_classifier(opened(model), "onnx", path)
    assert max(found.differences.values()) < 1e-4
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", 3, 16, 24]
    images = torch.rand(7, 3, 16, 24)
    (logits,) = session.run(["logits"], {"images": images.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), model.eval()(images), atol=1e-4, rtol=1e-4)
    assert "batch of 3: largest difference" in found.text()


def test_a_file_that_could_not_be_run_does_not_replace_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pt2"
    path.write_text("the old one")

    def fails(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(room, "_write", fails)
    with pytest.raises(OSError, match="no space left"):
        export_classifier(opened(nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 24, 3))), "torch", path)
    assert path.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_model_of_one_batch_size_is_refused(tmp_path: Path) -> None:
    class Fixed(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.reshape(2, -1)[:, :3]

    with pytest.raises(ValueError, match="'runs/m' cannot be exported for any batch size"):
        export_classifier(opened(Fixed()), "torch", tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_onnx_that_torch_cannot_write_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")

    def fails(*_: object, **__: object) -> None:
        raise torch.onnx.OnnxExporterError("many\nlines") from AssertionError("only 4D query\nis supported")

    monkeypatch.setattr(torch.onnx, "export", fails)
    rule = r"'runs/m' cannot be written as ONNX \(only 4D query is supported\); use --format torch"
    with pytest.raises(ValueError, match=rule):
        export_classifier(opened(nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 24, 3))), "onnx", tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("axes", [3, 5])
def test_onnx_takes_attention_of_other_than_four_axes(tmp_path: Path, axes: int) -> None:
    class Attention(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            tokens = images.flatten(2) if axes == 3 else images[:, :, None]  # b n d, b 3 1 n d
            mask = tokens @ tokens.mT if axes == 3 else None
            return nn.functional.scaled_dot_product_attention(tokens, tokens, tokens, mask).flatten(1)[:, :3]

    pytest.importorskip("onnxruntime")
    found = export_classifier(opened(Attention()), "onnx", tmp_path / "m.onnx")
    assert max(found.differences.values()) < 1e-4


def test_the_files_name_and_the_packages_are_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"--output: 'model.pt' is not valid: its name must end in .pt2"):
        check_export("torch", Path("model.pt"))
    (tmp_path / "model.pt2").mkdir()
    with pytest.raises(ValueError, match="it is a folder"):
        check_export("torch", tmp_path / "model.pt2")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(ValueError, match=r"it needs onnxscript; pip install 'vit\[export\]'"):
        check_export("onnx", Path("model.onnx"))


def test_weights_too_large_for_one_onnx_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_ONNX_LIMIT", 100)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(ValueError, match="do not fit into one ONNX file"):
        export_classifier(opened(nn.Linear(5, 5)), "onnx", tmp_path / "model.onnx")
