"""Which changes make stored predictions invalid, and which models have validation predictions."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.evaluation.test_head_columns import headed
from vit.comparison import predictions
from vit.comparison.predictions import EvalSet, add_validation, get_predictions
from vit.config import DataConfig, Preprocessing
from vit.data.file_source import FileSource
from vit.data.identity import sizes_digest
from vit.data.images import MissingImages, Split, fingerprint
from vit.data.run_images import with_test, write_images
from vit.engine import make_accelerator
from vit.evaluation.cache_key import cache_key, last_modified
from vit.evaluation.class_maps import imagenet_wnids
from vit.evaluation.metrics import classification_metrics
from vit.evaluation.predictions import Predictions
from vit.hub import OpenedModel


@pytest.fixture
def eval_set(tmp_path: Path) -> EvalSet:
    for place, name in enumerate("abc"):
        (tmp_path / f"{name}.png").touch()
        os.utime(tmp_path / f"{name}.png", (1000 + place, 1000 + place))
    source = FileSource(tmp_path, ["a.png", "b.png", "c.png"], torch.tensor([0, 1, 0]), ["x", "y"])
    split = Split(source, torch.tensor([0, 1]))
    return EvalSet("test", split, split, DataConfig(), tmp_path, make_accelerator("cpu", "fp32"))


def test_predictions_without_a_broken_image_are_used_only_where_it_may_be_left_out(
    eval_set: EvalSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_of_two = Predictions(
        indices=np.array([0]), labels=np.array([0]), logits=np.zeros((1, 2), np.float32), class_names=["x", "y"],
        num_total=2, num_broken=1, fingerprint="",
    )  # fmt: skip
    calls = []
    monkeypatch.setattr(predictions, "compute_predictions", lambda *_: calls.append(1) or one_of_two)
    skipping = replace(eval_set, data=replace(eval_set.data, on_broken_image="skip"))
    for asked, source in ((skipping, "computed"), (skipping, "stored"), (eval_set, "computed")):
        assert get_predictions(headed(2), [0, 1], asked).source == source
    assert len(calls) == 2


def test_a_changed_image_invalidates_stored_predictions(eval_set: EvalSet, tmp_path: Path) -> None:
    before = cache_key(headed(2), eval_set.split, eval_set.accelerator)
    os.utime(tmp_path / "a.png", (2000, 2000))
    assert cache_key(headed(2), eval_set.split, eval_set.accelerator) != before


def test_a_copy_that_keeps_its_time_is_a_change(eval_set: EvalSet, tmp_path: Path) -> None:
    before = last_modified(eval_set.split)
    assert before > 1001, "these times were set just now"
    time.sleep(0.02)
    (tmp_path / "new").write_bytes(b"another image")
    os.utime(tmp_path / "new", (1000, 1000))
    (tmp_path / "new").replace(tmp_path / "a.png")
    assert last_modified(eval_set.split) > before


def test_a_file_that_is_not_there_has_no_time(eval_set: EvalSet, tmp_path: Path) -> None:
    (tmp_path / "a.png").unlink()
    (tmp_path / "a.png").symlink_to(tmp_path / "nowhere.png")
    assert last_modified(eval_set.split) == (tmp_path / "b.png").stat().st_ctime
    (tmp_path / "b.png").unlink()
    assert last_modified(eval_set.split) == 0


def images_in(root: Path) -> EvalSet:
    split = Split(FileSource(root, ["a.png", "b.png"], torch.tensor([0, 1]), ["x", "y"]), torch.arange(2))
    data = DataConfig(name="imagefolder", root=str(root))
    return EvalSet("test", split, split, data, root.parent / "out", make_accelerator("cpu", "fp32"))


@pytest.fixture(params=["tested", "evaluated"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenedModel:
    """A run with predictions for `photos`, of its end or of `vit eval`; `others` has other images of the same names."""
    for place, content in (("photos", b"an image"), ("others", b"another image")):
        (tmp_path / place).mkdir()
        for name in "ab":
            (tmp_path / place / f"{name}.png").write_bytes(content + name.encode())
    split, folder = images_in(tmp_path / "photos").split, tmp_path / "run"
    data = asdict(DataConfig(name="imagefolder", root=str(tmp_path / "photos")))
    file, record = folder / "predictions" / "test.npz", folder / "summary.json"
    facts: dict[str, Any] = {"best.step": 7, "precision": "fp32"}
    if request.param == "evaluated":
        file, record = file.with_name("photos_best_auto.npz"), file.with_name("photos_best_auto.json")
        facts = {"step": 7, "precision": "fp32", "data": {**data, "sizes": sizes_digest(split)}}
    seen = Predictions(np.arange(2), np.arange(2), np.eye(2, dtype=np.float32), ["x", "y"], 2, 0, fingerprint(split))
    seen.save(file)
    os.utime(file, (time.time() + 60,) * 2)  # later than what the tests do to the images
    record.write_text(json.dumps(facts))
    write_images(folder / "images.csv", with_test({}, split))
    monkeypatch.setattr(predictions, "is_opened_by_default", lambda *_: True)
    monkeypatch.setattr(predictions, "compute_predictions", lambda *_: seen)
    state: Any = {"progress": {"step": 7}, "config": {"data": data}}
    return replace(headed(2), checkpoint=folder / "checkpoints" / "step-7", state=state)


def test_a_runs_predictions_are_of_its_own_images_and_keep_its_precision(run: OpenedModel, tmp_path: Path) -> None:
    photos = images_in(tmp_path / "photos")
    assert get_predictions(run, [0, 1], photos).source == "run"
    assert get_predictions(run, [0, 1], images_in(tmp_path / "others")).source == "computed"
    os.utime(tmp_path / "photos" / "a.png", (time.time() + 120,) * 2)
    assert get_predictions(run, [0, 1], photos).source == "computed"
    os.utime(tmp_path / "photos" / "a.png")
    assert get_predictions(run, [0, 1], photos).source == "run"
    others = images_in(tmp_path / "others")
    in_bf16 = make_accelerator("cpu", "bf16")
    for images, source, precision in ((photos, "run", "fp32"), (others, "computed", "bf16")):
        found = get_predictions(run, [0, 1], replace(images, accelerator=in_bf16))
        assert (found.source, found.precision) == (source, precision)


def test_a_run_knows_the_images_of_its_test_elsewhere_and_those_of_vit_eval_by_size(
    run: OpenedModel, tmp_path: Path
) -> None:
    (tmp_path / "photos").rename(tmp_path / "moved")
    moved, record = images_in(tmp_path / "moved"), tmp_path / "run" / "predictions" / "photos_best_auto.json"
    was_tested = not record.exists()
    assert (predictions._run_predictions(run, moved) is not None) == was_tested
    (tmp_path / "run" / "images.csv").unlink()
    assert predictions._run_predictions(run, moved) is None
    (tmp_path / "moved").rename(tmp_path / "photos")
    assert predictions._run_predictions(run, images_in(tmp_path / "photos")) is not None
    (tmp_path / "photos" / "a.png").write_bytes(b"one of another size")
    assert (predictions._run_predictions(run, images_in(tmp_path / "photos")) is not None) == was_tested


@pytest.mark.parametrize(
    ("names", "width", "columns", "unrestricted", "is_imagenet"),
    [
        (["x", "y"], 2, [0, 1], None, False),
        (["x", "y"], 3, [0, 2], 0.5, False),
        (["n01440764", "n01443537"], 1000, [0, 1], 0.5, True),
        (["n01440764", "n01443537"], 1000, [5, 6], 0.0, False),  # a head of its own thousand classes
        (["n01440764", "n01443537"], 3, [0, 1], 0.5, False),  # a run on three classes of ImageNet
    ],
)
def test_whose_classes_a_head_predicts(
    eval_set: EvalSet, names: list[str], width: int, columns: list[int], unrestricted: float | None, is_imagenet: bool
) -> None:
    logits = np.zeros((2, width), dtype=np.float32)
    logits[:, 0] = 1  # the first image's class
    seen = Predictions(np.arange(2), np.arange(2), logits, [str(each) for each in range(width)], 2, 0)
    source = FileSource(eval_set.folder, ["a.png", "b.png"], torch.arange(2), names)
    found = predictions._restrict(seen, columns, replace(eval_set, split=Split(source, torch.arange(2))), "run")
    assert found.unrestricted_top1 == unrestricted
    assert (found.imagenet_classes is not None) == is_imagenet


def test_everything_that_changes_predictions_changes_the_key(eval_set: EvalSet) -> None:
    model = headed(2)
    before = cache_key(model, eval_set.split, eval_set.accelerator)
    other = Preprocessing(image_size=(8, 8), interpolation="bilinear")
    for changed in (
        replace(model, source="timm:b"),
        replace(model, model=torch.nn.Linear(1, 1)),
        replace(model, stated_preprocessing=other),
    ):
        assert cache_key(changed, eval_set.split, eval_set.accelerator) != before
    fewer = Split(eval_set.split.source, torch.tensor([0]))
    assert cache_key(model, fewer, eval_set.accelerator) != before
    assert (before["device"], before["precision"]) == ("cpu", "no")


def test_imagenet_logits_are_read_among_the_datas_classes_and_among_all(eval_set: EvalSet) -> None:
    logits = np.zeros((3, 1000), dtype=np.float32)
    logits[0, [701, 0, 5]] = 3, 1, 2  # right in both
    logits[1, [701, 0, 5]] = 1, 2, 3  # right among the two classes only
    logits[2, [701, 0, 5]] = 3, 2, 1  # wrong in both
    head = Predictions(np.arange(3), np.array([0, 1, 1]), logits, [str(number) for number in range(1000)], 3, 0)
    names = [imagenet_wnids()[701], imagenet_wnids()[0]]
    split = Split(
        FileSource(eval_set.folder, ["a.png", "b.png", "c.png"], torch.tensor([0, 1, 1]), names), torch.arange(3)
    )
    found = predictions._restrict(head, [701, 0], replace(eval_set, split=split), "run")
    assert found.predictions.logits.tolist() == [[3, 1], [1, 2], [3, 2]]
    assert found.predictions.class_names == ["parachute (n03888257)", "tench (n01440764)"]
    assert classification_metrics(found.predictions)["top1"] == pytest.approx(2 / 3)
    assert found.unrestricted_top1 == pytest.approx(1 / 3)
    assert found.imagenet_classes is not None
    assert found.imagenet_classes.tolist() == [701, 5, 701]


# ------------------------------------------------------------------ validation


def refuse_with(error: Exception) -> Any:
    def open_training(_: object) -> None:
        raise error

    return open_training


@pytest.fixture
def results() -> Any:
    """One model's result for three images."""
    indices = np.arange(3)
    return [SimpleNamespace(predictions=Predictions(indices, indices, np.eye(3, dtype=np.float32), list("abc"), 3, 0))]


def test_data_without_training_images_have_no_validation(
    eval_set: EvalSet, results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "open_training", refuse_with(MissingImages("data.root: there is no train/")))
    (model,) = add_validation([headed(2)], [[0]], results, eval_set)
    assert model.test.indices.tolist() == [0, 1, 2]
    assert model.validation is None
    assert model.reason == "no validation images (data.root: there is no train/)"


def test_other_errors_are_not_swallowed(eval_set: EvalSet, results: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "open_training", refuse_with(ValueError("a defect")))
    with pytest.raises(ValueError, match="a defect"):
        add_validation([headed(2)], [[0]], results, eval_set)


@pytest.mark.parametrize(
    ("name", "root", "held_out", "reason"),
    [
        ("imagefolder", "cats", "", ""),
        ("imagefolder", "cats", "others", "the run before, which it began from, held out other images than these"),
        ("imagefolder", "dogs", "others", ""),
        ("cifar10", "cats", "others", ""),
    ],
)
def test_a_run_that_began_from_one_which_held_out_other_images(
    name: str, root: str, held_out: str, reason: str, eval_set: EvalSet, results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same data, that one may have been trained on the images that this one held out."""
    images = fingerprint(eval_set.split)

    def state(data: DataConfig, held_out: str, pretrained: str | None) -> dict[str, Any]:
        config = {"data": asdict(data), "model": {"pretrained": pretrained}}
        return {"config": config, "data_fingerprint": f"trained+{held_out}"}

    run = state(DataConfig(name="imagefolder", root="cats"), images, "before")
    before = state(DataConfig(name=name, root=root), held_out or images, None)
    monkeypatch.setattr(predictions, "lineage", lambda state: iter([state, before]))
    monkeypatch.setattr(predictions, "open_training", lambda _: (None, eval_set.split))
    monkeypatch.setattr(predictions, "get_predictions", lambda *_: results[0])
    (found,) = add_validation([replace(headed(3), state=run)], [[0, 1, 2]], results, eval_set)
    assert found.reason.startswith(reason)
    assert (found.validation is None) == bool(reason)


def test_a_run_that_began_from_one_which_cannot_be_read(
    eval_set: EvalSet, results: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been trained on the images that this one held out."""
    data = asdict(DataConfig(name="imagefolder", root="cats"))
    config = {"data": data, "model": {"pretrained": str(tmp_path / "gone")}}
    run: Any = {"config": config, "data_fingerprint": f"trained+{fingerprint(eval_set.split)}"}
    monkeypatch.setattr(predictions, "open_training", lambda _: (None, eval_set.split))
    monkeypatch.setattr(predictions, "get_predictions", lambda *_: results[0])
    (found,) = add_validation([replace(headed(3), state=run)], [[0, 1, 2]], results, eval_set)
    assert found.validation is None
    assert found.reason == (
        f"the run {tmp_path / 'gone'}, which it began from, may have been trained on them, which could not be checked: "
        "it is not there any more"
    )
