"""Contrastive learning from training to a classifier with its encoder."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.processes import in_processes
from tests.tasks.masked_autoencoder.test_run import MAE
from tests.test_runs import assert_no_pickle
from tests.training.test_loop import at_step
from tests.training.tiny import TINY, assert_same_bits, last, tiny
from vit.cli import main
from vit.config import AugmentConfig, DataConfig, ModelConfig, TrainConfig
from vit.data.images import open_test
from vit.data.preprocessing import normalize
from vit.engine import make_accelerator
from vit.hub import open_model
from vit.models.contrastive import ContrastiveModel
from vit.runs import read_metrics
from vit.settings import dump_run_config
from vit.tasks import TASKS
from vit.tasks.contrastive.config import ContrastiveConfig, ContrastiveRun
from vit.tasks.contrastive.training import ContrastiveLearning
from vit.tasks.encoder_report import pictured
from vit.tasks.masked_autoencoder.config import MaskedAutoencoderRun
from vit.training.interruption import Stopped
from vit.training.loop import train
from vit.training.plan import make_plan

CONTRASTIVE = ContrastiveRun(
    model=tiny(model={"stochastic_depth_rate": 0.2, "patch_dropout_rate": 0.25, "patch_size": 2}).model,
    data=TINY.data,
    augment=AugmentConfig(crop="random_resized", flip=True, color_jitter=0.4, grey_probability=0.2),
    optim=TINY.optim,
    train=TrainConfig(epochs=3, precision="fp32", log_every_steps=1, ema_decay=0.5),
    contrastive=ContrastiveConfig(projection_hidden=16, projection_width=8, knn_images=30),
    device="cpu",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "contrastive"
    train(CONTRASTIVE, run)
    assert_no_pickle(run)
    return run


def test_every_validation_shows_loss_and_neighbours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "contrastive.yaml"
    settings.write_text(dump_run_config(replace(CONTRASTIVE, train=replace(CONTRASTIVE.train, epochs=1)), {}))
    assert main(["train", "--config", str(settings), "--output_dir", str(tmp_path / "run")]) == 0
    last_metrics = [line for line in read_metrics(tmp_path / "run") if "ema.val.knn" in line][-1]
    loss, knn = last_metrics["ema.val.loss"], last_metrics["ema.val.knn"]
    assert f"ema.val.loss {loss:.4g}, knn {knn:.2%}" in capsys.readouterr().out


def test_images_grow_in_training_while_those_of_validation_have_the_models_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = dict[bool, list[tuple[int, ...]]]()
    forward = ContrastiveModel.forward

    def observed(model: ContrastiveModel, images: torch.Tensor, **named: Any) -> torch.Tensor:
        shapes.setdefault(model.training, []).append(tuple(images.shape[-2:]))
        return forward(model, images, **named)

    monkeypatch.setattr(ContrastiveModel, "forward", observed)
    growing = replace(CONTRASTIVE.augment, first_image_size=4, growing_epochs=1, size_step=4)
    train(replace(CONTRASTIVE, augment=growing, train=replace(CONTRASTIVE.train, epochs=2)), tmp_path / "run")
    assert set(shapes[True]) == {(4, 4), (8, 8)}
    assert set(shapes[False]) == {(8, 8)}


def test_the_loss_falls_and_everything_is_written(run: Path) -> None:
    history = read_metrics(run)
    losses = [line["train.loss"] for line in history if "train.loss" in line]
    assert losses[-1] < losses[0]  # validation has three images, which are hardly to be confused
    assert all(line["ema.val.loss"] > 0 for line in history if "ema.val.loss" in line)
    assert all(0 <= line["val.knn"] <= 1 for line in history if "val.knn" in line)
    card = (run / "README.md").read_text()
    assert "an encoder trained on fake by contrastive learning" in card
    for figure in ("neighbours", "learning_curves"):
        assert (run / "figures" / f"{figure}.png").stat().st_size > 1000
        assert f"figures/{figure}.png" in card


def test_neighbours_are_the_most_similar(run: Path) -> None:
    images = json.loads((run / "figures" / "neighbours.json").read_text())["images"]
    assert len(images) == 8
    for neighbours in images.values():
        similarities = [each["similarity"] for each in neighbours]
        assert len(similarities) == 7
        assert similarities == sorted(similarities, reverse=True)
        assert max(similarities) <= 1 + 1e-6


def test_the_files_beside_the_picture_have_these_similarities(run: Path) -> None:
    images = json.loads((run / "figures" / "neighbours.json").read_text())["images"]
    task = ContrastiveLearning(CONTRASTIVE, make_accelerator("cpu", "fp32"))
    model = open_model(run).model.eval()
    features: dict[str, torch.Tensor] = {}
    for loader in (task.evaluator.neighbours.loader, task.eval_loader(open_test(CONTRASTIVE.data))):
        for batch in loader:
            with torch.no_grad():
                rows = torch.nn.functional.normalize(model(normalize(batch.images, loader.preprocessing)), dim=1)
            features |= dict(zip(map(loader.split.source.name, batch.indices.tolist()), rows, strict=True))
    train = {name: row for name, row in features.items() if name.startswith("fake/train/")}
    assert len(train) == len(task.evaluator.neighbours.loader.split) > 20
    for name, neighbours in images.items():
        cosines = {each: float(row @ features[name]) for each, row in train.items()}
        largest = pytest.approx(sorted(cosines.values(), reverse=True)[:7], abs=1e-5)
        assert [each["similarity"] for each in neighbours] == largest
        assert [cosines[each["file"]] for each in neighbours] == largest


def test_eval_finds_what_training_found(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run)]) == 0
    found = json.loads(capsys.readouterr().out.split("\nsee ")[0])
    summary = json.loads((run / "summary.json").read_text())
    assert found["loss"] == pytest.approx(summary["test.loss"], rel=1e-6)
    assert found["knn"] == summary["test.knn"]
    for words, line in (
        (["--image_size", "16"], "at the size of training"),
        (["--data.batch_size", "8"], "data.batch_size: 8 is not valid: the loss depends on the number of images"),
    ):
        assert main(["eval", str(run), *words]) == 2
        assert line in capsys.readouterr().err


def test_frozen_features_are_judged(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--transfer", "--output_dir", str(tmp_path)]) == 0
    assert "linear_probe" in capsys.readouterr().out


def test_stopped_and_continued_it_is_the_same(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        at_step(patch, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Stopped):
            train(CONTRASTIVE, tmp_path)
    train(CONTRASTIVE, tmp_path, resume=True)
    assert_same_bits(run, tmp_path)


def test_the_encoder_is_a_model_of_its_own(run: Path) -> None:
    opened = open_model(run, select="last")
    assert opened.num_classes == 0
    tensors = last(run).tensors["ema"]
    for name, tensor in opened.model.state_dict().items():
        assert torch.equal(tensor, tensors[f"encoder.{name}"]), name
    assert opened.model(torch.rand(2, 3, 8, 8)).shape == (2, 16)


def test_a_classifier_starts_from_the_encoder(run: Path, tmp_path: Path) -> None:
    model = {"patch_size": 2, "pretrained": str(run), "new_head": True}
    train(tiny(model=model, optim={"lr": 1e-9}), tmp_path / "tuned")
    tuned, encoder = last(tmp_path / "tuned").tensors["model"], open_model(run).model.state_dict()
    for name, tensor in encoder.items():
        torch.testing.assert_close(tuned[name], tensor, atol=1e-6, rtol=0)


def test_a_resnet_is_trained_too(tmp_path: Path) -> None:
    model = ModelConfig(name="resnet18_cifar", image_size=8, width=16)
    summary = train(replace(CONTRASTIVE, model=model), tmp_path)
    assert 0 <= summary["test.knn"] <= 1
    assert open_model(tmp_path).model(torch.rand(2, 3, 8, 8)).shape == (2, 128)


def test_blocks_can_be_computed_again(run: Path, tmp_path: Path) -> None:
    train(replace(CONTRASTIVE, train=replace(CONTRASTIVE.train, gradient_checkpointing=True)), tmp_path)
    assert_same_bits(run, tmp_path)


def test_an_image_alone_in_the_last_step_joins_the_one_before(tmp_path: Path) -> None:
    train(replace(CONTRASTIVE, data=replace(TINY.data, batch_size=12)), tmp_path)  # 37 images
    assert last(tmp_path).state["progress"]["step"] == 3 * 3


SMALL: dict[str, Any] = {
    "name": "imagefolder",
    "batch_size": 16,
    "workers": 0,
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
}


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Two classes of 30 training images each, and five test images of which one cannot be read."""
    root, draws = tmp_path / "photographs", np.random.default_rng(0)
    for part, count in (("train", 30), ("test", 5)):
        for name in ("cat", "dog"):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = draws.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{number}.png")
    (root / "test" / "dog" / "2.png").write_bytes(b"no picture")
    return root


def test_images_that_cannot_be_read_are_not_counted(photographs: Path, tmp_path: Path) -> None:
    data = DataConfig(root=str(photographs), on_broken_image="skip", **SMALL)
    summary = train(replace(CONTRASTIVE, data=data), tmp_path / "run")
    assert (summary["test.n_seen"], summary["test.n_total"], summary["test.n_broken"]) == (9, 10, 1)
    assert "1 of 10 test images could not be read" in TASKS["contrastive"].headline(summary)


@pytest.mark.parametrize("config", [CONTRASTIVE, MAE], ids=lambda config: str(config.task))
def test_only_images_that_can_be_read_are_pictured(
    config: ContrastiveRun | MaskedAutoencoderRun, photographs: Path, tmp_path: Path
) -> None:
    """All of those that would be, were none broken, are."""
    data = DataConfig(root=str(photographs), on_broken_image="skip", **SMALL)
    test = open_test(data)
    for index in pictured(test.source, test.indices).indices.tolist():
        (photographs / test.source.name(index)).write_bytes(b"no picture")
    short = replace(config.train, epochs=1)
    summary = train(replace(config, data=data, train=short), tmp_path / "run")
    assert summary["test.n_seen"] in (1, 2), "the one that is broken anyway may be among the others"
    (numbers,) = (file for file in (tmp_path / "run" / "figures").glob("*.json") if "curves" not in file.name)
    assert len(json.loads(numbers.read_text())["images"]) == summary["test.n_seen"]


@pytest.mark.parametrize("config", [CONTRASTIVE, MAE], ids=lambda config: str(config.task))
def test_copies_of_training_images_and_what_could_not_be_read_are_said(
    config: ContrastiveRun | MaskedAutoencoderRun,
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before training and by `vit eval`, as for a classifier."""
    monkeypatch.setattr("vit.tasks.encoder_report.draw_learning_curves", lambda *_: None)
    for number in range(2):
        shutil.copy(photographs / "train" / "cat" / f"{number}.png", photographs / "test" / "cat" / f"{number}.png")
    (photographs / "test" / "cat" / "more.heic").touch()
    data = DataConfig(root=str(photographs), on_broken_image="skip", **SMALL)
    config, run = replace(config, data=data, train=replace(config.train, epochs=1)), tmp_path / "run"
    said = "2 of the 10 test images are training or validation images too, byte by byte"
    assert said in make_plan(config).text()
    train(config, run)
    capsys.readouterr()
    assert main(["eval", str(run), "--transfer", "--output_dir", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    copies = f"2 of 10 test images are copies of training or validation images of {run}, byte by byte"
    lines = (copies, said, "1 image could not be read; features are evaluated on the others")
    for warning, line in zip(found["warnings"], lines, strict=True):
        assert warning.startswith(line)
        assert f"warning: {warning}\n" in printed.err
    assert found["notes"] == ["not read: 1 .heic file; JPEG or PNG would be"]


def test_too_few_images_that_can_be_read_are_named(photographs: Path, tmp_path: Path) -> None:
    for number in range(25):
        (photographs / "train" / "cat" / f"{number}.png").write_bytes(b"no picture")
        (photographs / "train" / "dog" / f"{number}.png").write_bytes(b"no picture")
    data = DataConfig(root=str(photographs), on_broken_image="skip", **SMALL)
    with pytest.raises(
        ValueError, match=r"contrastive.knn_images: \d+ is not valid: 20 neighbours vote, and only \d+ of"
    ):
        train(replace(CONTRASTIVE, data=data), tmp_path / "run")


def test_the_summary_counts_both_views_without_the_patches_left_out(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["gmacs"] < summary["train.gmacs"] < 2 * summary["gmacs"]


def test_plan_counts_both_views(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = []
    model = {"patch_size": 2, "patch_dropout_rate": 0.25}
    for config in (tiny(model=model, train={"epochs": 3}), CONTRASTIVE):
        settings = tmp_path / f"{config.task}.yaml"
        settings.write_text(dump_run_config(config, {}))
        assert main(["plan", "--config", str(settings)]) == 0
        out = capsys.readouterr().out
        costs.append(float(out.split("training arithmetic")[1].split()[0]))
    assert costs[1] == pytest.approx(2 * costs[0], rel=0.01)
    assert "forward, mean over the epochs: 2 views of an image; patch dropout" in out


def changed_run(change: dict[str, Any]) -> ContrastiveRun:
    values: dict[str, Any] = {
        name: ContrastiveConfig(**value) if isinstance(value, dict) else value for name, value in change.items()
    }
    return replace(CONTRASTIVE, **values)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"augment": AugmentConfig(mixup_alpha=0.2, mix_group=4)}, "compared with its own other view"),
        ({"augment": AugmentConfig(repeats=2)}, "two views are made of every image"),
        ({"data": replace(TINY.data, sampling="balanced")}, "two views are made of every image"),
        ({"data": replace(TINY.data, fraction=0.5, epoch_length="whole_set")}, "two views are made of every image"),
        (
            {"augment": AugmentConfig()},
            "augment.crop: 'none' is not valid: the two views of an image would be the same",
        ),
        ({"train": TrainConfig(accumulation_steps=2)}, "it cannot be cut"),
        ({"data": replace(TINY.data, batch_size=1)}, "it needs at least 2"),
        ({"model": replace(CONTRASTIVE.model, pretrained="x", name=None, freeze_backbone=True)}, "all of the encoder"),
        ({"contrastive": {"temperature": 0.0}}, "contrastive.temperature: 0.0 is not valid"),
        ({"contrastive": {"temperature": float("nan")}}, "contrastive.temperature: nan is not valid"),
        ({"contrastive": {"projection_hidden": 0}}, "contrastive.projection_hidden: 0 is not valid"),
        ({"contrastive": {"projection_width": 10**9}}, "contrastive.projection_width: 1000000000 is not valid"),
        ({"contrastive": {"knn_images": 3}}, "20 neighbours vote"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        changed_run(change)


def test_two_processes_train_the_same_model(run: Path, tmp_path: Path) -> None:
    """Every image is compared with those of the other process too, and its gradient comes back from there."""
    ours, theirs = in_processes(2, train, CONTRASTIVE, tmp_path)
    assert ours["test.loss"] == theirs["test.loss"]
    alone = json.loads((run / "summary.json").read_text())
    assert ours["test.loss"] == pytest.approx(alone["test.loss"], rel=1e-4)
    assert ours["test.knn"] == theirs["test.knn"] == alone["test.knn"]
    one, two = ([line["train.loss"] for line in read_metrics(each) if "train.loss" in line] for each in (run, tmp_path))
    assert two == pytest.approx(one, rel=1e-4)
