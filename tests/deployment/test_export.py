"""Exported files run on their own, on images of any size and number; an unfinished file never has the final name."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from tests.data.image_folders import make_folder, picture, truncate
from vit import create_model
from vit.cli import main
from vit.config import DataConfig, Preprocessing
from vit.data.file_source import FileSource
from vit.data.images import open_test
from vit.data.preprocessing import normalize, resize_and_crop
from vit.deployment import Decision, Trial, Unfaithful
from vit.deployment import export as room
from vit.deployment.errors import TOLERANCES
from vit.deployment.export import check_export, export_classifier
from vit.deployment.program import write_program
from vit.deployment.proof import Proof
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


@pytest.mark.parametrize("answers", [0.5, float("nan"), float("inf")])
def test_a_file_of_other_outputs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: float) -> None:
    monkeypatch.setattr(room, "_load_runner", lambda *_: lambda inputs: np.full((len(inputs), 3), answers, np.float32))
    with pytest.raises(Unfaithful, match="its outputs for random images differ from the model's by"):
        export_classifier(opened(small_vit()), "torch", tmp_path / "model.pt2")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"positions": "rope", "num_registers": 2, "pooling": "gap"}, marks=pytest.mark.slow)],
)
def test_torchs_file_takes_images_of_any_size_and_number(tmp_path: Path, options: dict[str, Any]) -> None:
    given, path = opened(small_vit(**options).train()), tmp_path / "new" / "model.pt2"
    found = export_classifier(given, "torch", path)
    assert set(found.differences) == {1, 3}
    assert max(found.differences.values()) < 1e-2, "one level of 255 in some pixels"
    assert found.largest > 0.1
    extra = {"description.json": ""}
    alone = torch.export.load(path, extra_files=extra).module()
    for size in ((16, 24), (40, 31), (9, 90)):
        photo = pixels_of(size)
        answered = alone(torch.from_numpy(np.stack([photo, photo])))
        torch.testing.assert_close(answered[:1], probabilities(given, photo), atol=1e-2, rtol=0)
    said = json.loads((tmp_path / "new" / "model.pt2.json").read_text())
    assert said["input"] == {"name": "pixels", "type": "uint8", "shape": ["batch", "height", "width", 3]}
    assert json.loads(extra["description.json"])["class_names"] == said["class_names"] == ["a", "b", "c"]
    assert sorted(file.name for file in path.parent.iterdir()) == ["model.pt2", "model.pt2.json"]


def test_torchs_file_of_logits_takes_prepared_images(tmp_path: Path) -> None:
    model, path = small_vit(), tmp_path / "model.pt2"
    found = export_classifier(opened(model), "torch", path, logits=True)
    assert max(found.differences.values()) < 1e-4
    images = torch.rand(5, 3, 16, 24)
    torch.testing.assert_close(torch.export.load(path).module()(images), model.eval()(images))
    said = json.loads((tmp_path / "model.pt2.json").read_text())
    assert said["input"] == {"name": "images", "type": "float32", "shape": ["batch", 3, 16, 24]}
    assert said["preprocessing"]["mean"] == [0.5, 0.5, 0.5]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_onnx_answers_like_the_model(tmp_path: Path, kind: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = small_vit() if kind == "vit" else create_model("resnet18_cifar", width=8, num_classes=3)
    given, path = opened(model), tmp_path / "model.onnx"
    export_classifier(given, "onnx", path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", "height", "width", 3]
    stored = session.get_modelmeta().custom_metadata_map
    assert json.loads(stored["class_names"]) == ["a", "b", "c"]
    assert json.loads(stored["preprocessing"])["image_size"] == [16, 24]
    for size in ((16, 24), (40, 31), (9, 90)):
        photo = pixels_of(size)
        (answered,) = session.run(["probabilities"], {"pixels": np.stack([photo, photo])})
        torch.testing.assert_close(torch.from_numpy(answered[:1]), probabilities(given, photo), atol=1e-2, rtol=0)
    found = export_classifier(given, "onnx", path, logits=True)
    assert max(found.differences.values()) < 1e-4
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    images = torch.rand(7, 3, 16, 24)
    (logits,) = session.run(["logits"], {"images": images.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), model.eval()(images), atol=1e-4, rtol=1e-4)
    assert "batch of 3: largest difference" in found.text()


@pytest.mark.slow
def test_onnx_of_eight_bits(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    given, path = replace(opened(small_vit()), dtype="int8"), tmp_path / "model.onnx"
    trial = trial_of(tmp_path / "photos", tolerance=TOLERANCES["int8"])
    found = export_classifier(given, "onnx", path, trial=trial)
    assert found.proof is not None
    assert 1e-4 < found.proof.largest_difference < 0.1
    operators = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert operators["MatMulInteger"] == 2 * 4, "two blocks of four layers"
    assert operators["MatMul"] + operators["Gemm"] >= 2 + 2 * 2, "patch embedding, head and attention"
    said = json.loads((tmp_path / "model.onnx.json").read_text())
    assert said["weights"].endswith("-int8")
    assert said["class_names"] == ["a", "b", "c"]
    with pytest.raises(
        ValueError, match="--dtype: 'int8' is not valid: eight bits are written with --format onnx or compiled"
    ):
        export_classifier(given, "torch", tmp_path / "m.pt2")


def pixels_of(size: tuple[int, int]) -> NDArray[np.uint8]:
    return np.array(picture((size[1], size[0]), 3))


def probabilities(given: OpenedModel, photo: NDArray[np.uint8]) -> torch.Tensor:
    images = normalize(resize_and_crop(Image.fromarray(photo), given.preprocessing)[None], given.preprocessing)
    with torch.no_grad():
        return torch.softmax(given.model.eval()(images), dim=1)


def trial_of(folder: Path, tolerance: float = 0.001) -> Trial:
    """Images of three classes, one of them broken."""
    make_folder(folder, {"a": 4, "b": 4, "c": 4}, size=(30, 20))
    truncate(folder / "b" / "002.png")
    split = open_test(DataConfig(name="imagefolder", root=str(folder), test_fraction=1.0))
    return Trial(split, Decision([0, 1, 2]), "test images", tolerance)


def test_file_and_model_are_asked_about_images(tmp_path: Path) -> None:
    given = opened(small_vit())
    found = export_classifier(given, "torch", tmp_path / "m.pt2", trial=trial_of(tmp_path / "photos"))
    proof = found.proof
    assert proof is not None
    assert (proof.num_images, proof.num_broken) == (11, 1)
    assert proof.agreement == 1
    assert proof.difference == 0
    assert proof.interval[0] < 0 < proof.interval[1], "eleven images leave much open"
    assert "11 test images (1 more cannot be read): accuracy" in found.text()
    said = json.loads((tmp_path / "m.pt2.json").read_text())["proof"]
    assert said["file_top1"] == said["model_top1"]


class Colours(nn.Module):
    """Classes by the colours of an image's left and right, which any mistake in preparing it changes."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        left, right = images[..., :8].mean(dim=(2, 3)), images[..., -8:].mean(dim=(2, 3))  # b c
        return torch.stack([left[:, 0] - left[:, 2], right[:, 2] - right[:, 1], images.mean(dim=(1, 2, 3))], dim=1)


DAMAGES: dict[str, dict[str, Any]] = {
    "mean and std left out": {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)},
    "blue first": {"channel_order": "bgr"},
    "squashed": {"squash": True},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_prepares_images_otherwise_is_removed(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preprocessing inside the file is damaged. The labels are the model's classes, so that it is always right."""
    given, trial = opened(Colours(), (16, 16)), trial_of(tmp_path / "photos", tolerance=0.03)
    make_folder(tmp_path / "more", {"a": 30, "b": 30, "c": 30}, size=(60, 20))
    split = open_test(DataConfig(name="imagefolder", root=str(tmp_path / "more"), test_fraction=1.0))
    source = split.source
    assert isinstance(source, FileSource)
    right = [int(probabilities(given, np.array(source.read(index))).argmax()) for index in range(len(source))]
    trial = replace(trial, split=replace(split, source=replace(source, labels=torch.tensor(right))))
    found = export_classifier(given, "torch", tmp_path / "m.pt2", trial=trial)
    assert found.proof is not None
    assert found.proof.model_top1 == 1
    assert found.proof.file_top1 > 0.97, "a pixel that is rounded otherwise may decide between two classes"
    written = (tmp_path / "m.pt2").read_bytes()

    def damaged(model: nn.Module, answer: Any, preprocessing: Preprocessing, *rest: Any, **options: Any) -> None:
        write_program(model, answer, replace(preprocessing, **DAMAGES[damage]), *rest, **options)

    monkeypatch.setattr(room, "write_program", damaged)
    with pytest.raises(
        Unfaithful, match=r"the file answers otherwise than the model, and was not kept: 90 test images"
    ):
        export_classifier(given, "torch", tmp_path / "m.pt2", trial=trial)
    assert (tmp_path / "m.pt2").read_bytes() == written, "the earlier file stays"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["m.pt2", "m.pt2.json"]


def test_an_interrupted_comparison_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, trial = opened(small_vit()), trial_of(tmp_path / "photos")
    asked, read = list[int](), FileSource.read

    def interrupted(source: FileSource, index: int, **named: Any) -> Image.Image:
        asked.append(index)
        if len(asked) == 5:
            raise KeyboardInterrupt
        return read(source, index, **named)

    monkeypatch.setattr(FileSource, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_classifier(given, "torch", tmp_path / "m.pt2", trial=trial)
    assert {path.name for path in tmp_path.iterdir()} == {"photos", ".m.pt2.proof.npz"}
    found = export_classifier(given, "torch", tmp_path / "m.pt2", trial=trial)
    assert len(asked) == 13, "twelve images, and the one at which it was stopped once more"
    assert found.proof is not None
    assert found.proof.num_images + found.proof.num_broken == 12
    assert {path.name for path in tmp_path.iterdir()} == {"photos", "m.pt2", "m.pt2.json"}


def test_a_damaged_record_of_an_interrupted_comparison_is_none(tmp_path: Path) -> None:
    given, trial = opened(small_vit()), trial_of(tmp_path / "photos")
    (tmp_path / ".m.pt2.proof.npz").write_bytes(b"PK\x03\x04 cut off")
    found = export_classifier(given, "torch", tmp_path / "m.pt2", trial=trial)
    assert found.proof is not None
    assert found.proof.num_images + found.proof.num_broken == 12
    assert ("more cannot be read" in found.text()) == (found.proof.num_broken > 0)
    assert {path.name for path in tmp_path.iterdir()} == {"photos", "m.pt2", "m.pt2.json"}


@pytest.mark.parametrize("option", ["--tolerance", "--images"])
def test_an_option_of_the_comparison_needs_images(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", "vit_tiny_patch16_224", "--format", "torch", "--output", str(tmp_path / "m.pt2")]
    assert main([*words, option, "1"]) == 2
    assert capsys.readouterr().err.startswith(f"vit: {option}: 1")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_the_description_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.pt2.json").mkdir()
    with pytest.raises(ValueError, match=r"its description goes to .*m\.pt2\.json, which is a folder"):
        export_classifier(opened(small_vit()), "torch", tmp_path / "m.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt2.json"]


def test_answers_that_are_no_numbers_are_refused() -> None:
    same: dict[str, Any] = {"model_top1": 0.5, "file_top1": 0.5, "interval": (0.0, 0.0), "agreement": 1.0}
    times: dict[str, Any] = {"model_seconds": 0.1, "file_seconds": 0.1}
    found = Proof(images="i", num_images=10, num_broken=0, largest_difference=float("nan"), **same, **times)
    with pytest.raises(Unfaithful, match="infinite values or NaN"):
        found.check(1.0)


def test_one_image_that_decides_is_named() -> None:
    accuracies: dict[str, Any] = {"model_top1": 0.5, "file_top1": 0.5 + 1 / 145, "interval": (-0.02, 0.03)}
    times: dict[str, Any] = {"model_seconds": 0.1, "file_seconds": 0.1}
    found = Proof(
        images="i", num_images=145, num_broken=0, agreement=0.99, largest_difference=0.1, **accuracies, **times
    )
    with pytest.raises(Unfaithful, match=r"at most 0\.5 points .*, and a single image is 0\.69: more of them"):
        found.check(0.005)
    with pytest.raises(Unfaithful, match=r"\(--tolerance\)$"):
        replace(found, num_images=1450).check(0.005)


def test_a_file_that_could_not_be_run_does_not_replace_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pt2"
    path.write_text("the old one")

    def fails(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(room, "write_program", fails)
    with pytest.raises(OSError, match="no space left"):
        export_classifier(opened(nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 24, 3))), "torch", path)
    assert path.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError, match="no space left"):
        export_classifier(opened(small_vit()), "torch", tmp_path / "new" / "folder" / "model.pt2")
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
    found = export_classifier(opened(Attention()), "onnx", tmp_path / "m.onnx", logits=True)
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


def test_a_model_without_a_head_is_refused(tmp_path: Path) -> None:
    headless = replace(
        opened(create_model("vit", image_size=16, patch_size=8, width=8, depth=1, num_heads=1, num_classes=0)),
        num_classes=0,
    )
    with pytest.raises(ValueError, match="model: 'runs/m' is not valid: it has no head; `vit convert` writes"):
        export_classifier(headless, "torch", tmp_path / "m.pt2")
    assert not list(tmp_path.iterdir())
