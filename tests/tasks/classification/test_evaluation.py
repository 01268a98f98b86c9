"""A trained checkpoint on a test set: what is returned, what is stored and where."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.data.image_folders import make_folder, picture, truncate
from tests.training.tiny import tiny
from vit.config import DataConfig
from vit.data.decoding import read_rgb
from vit.data.preprocessing import normalize, resize_and_crop
from vit.evaluation.evaluate import predict_all
from vit.evaluation.metrics import CONVENTIONS
from vit.evaluation.model_evaluation import evaluate_model
from vit.evaluation.predictions import Predictions
from vit.evaluation.transfer_evaluation import TransferOptions
from vit.hub import open_model
from vit.prediction.classify import classify_images
from vit.tasks.classification import evaluation as checkpoint_module
from vit.tasks.classification.config import ClassificationRun
from vit.tasks.task import EvalRequest
from vit.trained_runs import evaluate_checkpoint, trained_settings
from vit.training.loop import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
        train(tiny(train={"epochs": 1}), folder)
    return folder


@pytest.fixture(autouse=True)
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    monkeypatch.setattr(checkpoint_module, "save_figure", lambda *_: None)


def strict_json(path: Path) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_speed_and_classes_are_returned_and_stored_with_their_conventions(run: Path, tmp_path: Path) -> None:
    metrics = evaluate_checkpoint(EvalRequest(run, output_dir=tmp_path))
    assert metrics["images_per_second"] > 0
    assert list(metrics["per_class_accuracy"]) == ["pattern 0", "pattern 1", "pattern 2"]
    counts = {"pattern 0": 4, "pattern 1": 3, "pattern 2": 3}
    right = sum(counts[name] * value for name, value in metrics["per_class_accuracy"].items())
    assert right / 10 == pytest.approx(metrics["top1"])
    stored = strict_json(tmp_path / "fake_best_auto.json")
    assert metrics.pop("file") == str(tmp_path / "fake_best_auto.json")
    assert {key: stored[key] for key in metrics} == metrics
    assert CONVENTIONS.items() <= stored["conventions"].items()
    assert "knn" not in stored["conventions"]


def test_the_speed_is_that_of_the_prediction(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 104.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times, 200.0))
    assert evaluate_checkpoint(EvalRequest(run, output_dir=tmp_path))["images_per_second"] == 2.5


def test_a_class_without_images_is_null(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = predict_all

    def two_classes(*arguments: Any, **options: Any) -> Predictions:
        whole = answer(*arguments, **options)
        kept = whole.labels != 1
        return Predictions(
            whole.indices[kept], whole.labels[kept], whole.logits[kept], whole.class_names, int(kept.sum()), 0
        )

    monkeypatch.setattr(checkpoint_module, "predict_all", two_classes)
    metrics = evaluate_checkpoint(EvalRequest(run, output_dir=tmp_path))
    assert metrics["per_class_accuracy"]["pattern 1"] is None
    assert strict_json(tmp_path / "fake_best_auto.json")["per_class_accuracy"]["pattern 1"] is None


@pytest.mark.parametrize("inside", [".", "checkpoints/step-00000003"])
def test_a_relative_path_stores_in_the_run(inside: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = "last" if inside == "." else Path(inside).name  # so that it does not replace what is of another checkpoint
    stored = run / "predictions" / f"fake_{chosen}_auto.json"
    stored.unlink(missing_ok=True)
    monkeypatch.chdir(run / inside)
    before = {path for path in run.rglob("*") if "predictions" not in path.parts}
    evaluate_checkpoint(EvalRequest(Path(), select="last"))
    assert stored.is_file()
    assert {path for path in run.rglob("*") if "predictions" not in path.parts} == before
    assert list(run.rglob("predictions")) == [run / "predictions"]


def test_classes_that_a_list_has_in_another_order_are_those_of_their_names(tmp_path: Path) -> None:
    """Folders are sorted as text, the numbers of a list as numbers."""
    photos = make_folder(tmp_path / "photos", {"2": 5, "10": 6})
    data = DataConfig(name="imagefolder", root=str(photos), batch_size=8, workers=0)
    train(tiny(train={"epochs": 1}, data=data), tmp_path / "run")
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in sorted(photos.rglob("*.png"))]
    (tmp_path / "list.csv").write_text("\n".join(["file,label", *rows]))
    by_folder, by_list = (
        evaluate_checkpoint(
            EvalRequest(tmp_path / "run", output_dir=tmp_path / f"of {place.name}"),
            ["--data", str(place), "--data.test_fraction", "1.0"],
        )
        for place in (photos, tmp_path / "list.csv")
    )
    assert by_list["n_total"] == 11
    for name in ("per_class_accuracy", "top1", "nll"):
        assert by_list[name] == by_folder[name]


def test_an_earlier_evaluation_with_other_numbers_is_kept(run: Path, tmp_path: Path) -> None:
    first = evaluate_checkpoint(EvalRequest(run, output_dir=tmp_path))
    again = evaluate_checkpoint(EvalRequest(run, output_dir=tmp_path))
    assert not any("earlier" in note for note in again["notes"])
    file = Path(first["file"])
    stored = strict_json(file)
    file.write_text(json.dumps(stored | {"nll": stored["nll"] + 0.1}))  # as of images that were replaced since then
    last = evaluate_checkpoint(EvalRequest(run, output_dir=tmp_path))
    kept = tmp_path / "earlier-1" / file.name
    assert last["notes"] == [f"an earlier evaluation, made otherwise, is kept in {kept.parent}"]
    assert strict_json(kept)["nll"] == stored["nll"] + 0.1
    assert strict_json(file)["nll"] == pytest.approx(stored["nll"])
    assert kept.with_suffix(".npz").is_file()


def test_transfer_under_several_processes_is_refused_at_once(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Two:
        num_processes = 2

    def evaluated(*_: Any, **__: Any) -> None:
        raise AssertionError("the test set was opened")

    monkeypatch.setattr(checkpoint_module, "make_accelerator", lambda *_: Two())
    monkeypatch.setattr(checkpoint_module, "open_test", evaluated)
    with pytest.raises(ValueError, match=r"--transfer: .* one process"):
        evaluate_checkpoint(EvalRequest(run, transfer=TransferOptions(), output_dir=tmp_path))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_runs_features_are_those_of_its_model_on_the_same_images(precision: str, run: Path, tmp_path: Path) -> None:
    """`vit eval RUN --transfer` evaluates head and features, and `evaluate_model` the same features."""
    of_run = evaluate_checkpoint(
        EvalRequest(run, transfer=TransferOptions(), output_dir=tmp_path / "run"), ["--train.precision", precision]
    )
    config = trained_settings(run)
    assert isinstance(config, ClassificationRun)
    opened = evaluate_model(
        open_model(run), config.data, tmp_path / "model", transfer=TransferOptions(), device="cpu", precision=precision
    )
    assert of_run["transfer"] == opened["transfer"]
    assert of_run["transfer"]["head"]["num_train"] == config.data.fake_images
    stored = [
        sorted(
            map(load_file, (tmp_path / each).rglob("head-00000.safetensors")), key=lambda found: len(found["indices"])
        )
        for each in ("run", "model")
    ]
    assert [len(each) for each in stored] == [2, 2]  # test and training images
    for ours, theirs in zip(*stored, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert "balanced_accuracy" in of_run
    assert strict_json(tmp_path / "run" / "fake_best_auto.json")["conventions"]["knn"]


def test_head_and_features_are_judged_on_the_same_part_of_the_test_images(run: Path, tmp_path: Path) -> None:
    """The files of the whole evaluation stay beside those of the part."""
    config, few = trained_settings(run), TransferOptions(num_test_images=6)
    assert isinstance(config, ClassificationRun)
    evaluate_checkpoint(EvalRequest(run, output_dir=tmp_path / "run"))
    of_run = evaluate_checkpoint(EvalRequest(run, transfer=few, output_dir=tmp_path / "run"))
    assert of_run["n_seen"] == 6
    stored = {path.name for path in (tmp_path / "run").glob("*.npz")}
    assert stored == {"fake_best_auto.npz", "fake_best_auto_6_images.npz"}
    opened = evaluate_model(open_model(run), config.data, tmp_path / "model", transfer=few, device="cpu")
    assert (opened["n_seen"], opened["top1"]) == (6, of_run["top1"])


def test_a_random_head_is_not_evaluated_beside_features(run: Path, tmp_path: Path) -> None:
    config = trained_settings(run)
    assert isinstance(config, ClassificationRun)
    opened = open_model("vit_tiny_patch16_32", num_classes=3, mean=[0.5] * 3, std=[0.5] * 3)
    alone = evaluate_model(opened, config.data, tmp_path, device="cpu")
    assert alone["n_seen"] == alone["n_total"]
    beside = evaluate_model(opened, config.data, tmp_path, transfer=TransferOptions(), device="cpu")
    assert beside["head"] == "not evaluated: its weights are random"
    assert "top1" not in beside
    assert 0 <= beside["transfer"]["head"]["knn"] <= 1
    (before,) = (tmp_path / "earlier-1").glob("*.json")
    assert json.loads(before.read_text())["top1"] == alone["top1"], "the head's evaluation is not lost"


def test_features_of_images_that_could_not_be_read_are_told(tmp_path: Path) -> None:
    for part in ("train", "test"):
        make_folder(tmp_path / "images" / part, {"cat": 4, "dog": 4})
    truncate(next((tmp_path / "images" / "train" / "cat").iterdir()))
    data = DataConfig(name="imagefolder", root=str(tmp_path / "images"), on_broken_image="skip", workers=0)
    opened = open_model("vit_tiny_patch16_32", num_classes=2, mean=[0.5] * 3, std=[0.5] * 3)
    few = TransferOptions()
    found = evaluate_model(opened, data, tmp_path / "out", transfer=few, device="cpu")
    assert any("could not be read" in line for line in found["warnings"])


def test_single_images_are_decoded_as_evaluation_decodes_them(run: Path, tmp_path: Path) -> None:
    """A 16-bit image, which PIL alone would turn white."""
    path = tmp_path / "deep.png"
    grey = np.asarray(picture((12, 12), 3).convert("L")).astype(np.uint16) * 257
    Image.fromarray(grey).save(path)
    loaded = open_model(run)
    pixels = resize_and_crop(read_rgb(path, "deep"), loaded.preprocessing)[None]
    with torch.inference_mode():
        expected = loaded.model.eval()(normalize(pixels, loaded.preprocessing)).softmax(dim=1)[0]
    (first, classes), (second, again) = classify_images(loaded, [path, path], "cpu")
    assert (first, classes) == (second, again)
    assert first == path
    answers = dict(classes)
    assert [answers[f"pattern {number}"] for number in range(3)] == pytest.approx(expected.tolist(), abs=1e-6)
