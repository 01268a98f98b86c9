"""A masked autoencoder from training to a classifier with its encoder."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.processes import in_processes
from tests.test_runs import assert_no_pickle
from tests.training.test_loop import at_step
from tests.training.tiny import TINY, assert_same_bits, last, tiny
from vit.cli import main
from vit.config import AugmentConfig, ModelConfig, TrainConfig
from vit.engine import make_accelerator
from vit.hub import create_model, open_model
from vit.models.masked_autoencoder import MaskedAutoencoder, patch_pixels, pixels_to_images
from vit.runs import read_metrics
from vit.settings import dump_run_config
from vit.tasks.masked_autoencoder.config import MaskedAutoencoderConfig, MaskedAutoencoderRun
from vit.tasks.masked_autoencoder.reconstruction import reconstruct
from vit.tasks.masked_autoencoder.training import MaskedPrediction
from vit.training.interruption import Stopped
from vit.training.loop import train

MAE = MaskedAutoencoderRun(
    model=tiny(model={"stochastic_depth_rate": 0.2, "patch_size": 2}).model,
    data=TINY.data,
    augment=AugmentConfig(crop="random_resized", flip=True),
    optim=TINY.optim,
    train=TrainConfig(epochs=3, precision="fp32", log_every_steps=1, ema_decay=0.5),
    mae=MaskedAutoencoderConfig(decoder_width=16, decoder_depth=1, decoder_heads=2, knn_images=30),
    device="cpu",
)


def test_images_that_begin_as_one_patch_are_refused(tmp_path: Path) -> None:
    growing = replace(MAE.augment, first_image_size=2, growing_epochs=2)
    with pytest.raises(ValueError, match=r"augment\.first_image_size: 2 is not valid: .* it has none to hide"):
        train(replace(MAE, augment=growing), tmp_path / "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "mae"
    train(MAE, run)
    assert_no_pickle(run)
    return run


def test_the_loss_falls_and_everything_is_written(run: Path) -> None:
    history = read_metrics(run)
    losses = [line["ema.val.loss"] for line in history if "ema.val.loss" in line]
    assert losses[-1] < losses[0]
    assert all(0 <= line["val.knn"] <= 1 for line in history if "val.knn" in line)
    card = (run / "README.md").read_text()
    assert "a masked autoencoder trained on fake" in card
    for figure in ("reconstructions", "learning_curves"):
        assert (run / "figures" / f"{figure}.png").stat().st_size > 1000
        assert f"figures/{figure}.png" in card
    assert len(json.loads((run / "figures" / "reconstructions.json").read_text())["images"]) == 8


@pytest.mark.parametrize("normalized", [True, False])
def test_a_model_that_knows_the_hidden_patches_restores_the_images(
    normalized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of patches that were seen, for which it answers nonsense, nothing is taken from it."""
    hidden: list[torch.Tensor] = []

    def answer(model: MaskedAutoencoder, images: torch.Tensor, kept: torch.Tensor, **_: object) -> torch.Tensor:
        pixels = patch_pixels(images, model.config.patch_size)
        hidden.append(torch.ones_like(pixels).scatter(1, kept[..., None].expand(-1, -1, pixels.shape[2]), 0.0))
        if normalized:
            pixels = (pixels - pixels.mean(dim=2, keepdim=True)) / pixels.std(dim=2, keepdim=True)
        return torch.where(hidden[0] > 0, pixels, -9.0)

    config = replace(MAE, mae=replace(MAE.mae, normalize_pixels=normalized))
    task = MaskedPrediction(config, make_accelerator("cpu", "fp32"))
    monkeypatch.setattr(MaskedAutoencoder, "forward", answer)
    found = reconstruct(task.evaluator, task.model, task.val_loader, config.data, task.val_split.indices)
    assert (found.predicted.int() - found.images.int()).abs().max() <= 1
    grey = pixels_to_images(hidden[0], (4, 4), (2, 2)).movedim(1, -1) > 0
    assert 0 < grey.sum() < grey.numel()
    assert torch.equal(found.seen, found.images.masked_fill(grey, 128))  # the data's mean, 0.5


def test_an_earlier_evaluation_with_other_numbers_is_kept(run: Path, tmp_path: Path) -> None:
    words = ["eval", str(run), "--output_dir", str(tmp_path)]
    assert main(words) == 0
    assert main(words) == 0
    files = {path.name for path in tmp_path.iterdir()}
    assert "earlier-1" not in files
    (record,) = (path for path in tmp_path.glob("*.json") if "reconstructions" not in path.name)
    changed = json.dumps(json.loads(record.read_text()) | {"loss": 99.0})
    record.write_text(changed)
    assert main(words) == 0
    assert {path.name for path in (tmp_path / "earlier-1").iterdir()} == files
    assert (tmp_path / "earlier-1" / record.name).read_text() == changed


def test_eval_finds_what_training_found(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run)]) == 0
    found, summary = (
        json.loads(capsys.readouterr().out.split("\nsee ")[0]),
        json.loads((run / "summary.json").read_text()),
    )
    assert found["loss"] == pytest.approx(summary["test.loss"], rel=1e-6)
    assert found["knn"] == summary["test.knn"]
    assert main(["eval", str(run), "--image_size", "16"]) == 2
    assert "at the size of training" in capsys.readouterr().err


def test_frozen_features_are_judged(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--transfer", "--output_dir", str(tmp_path)]) == 0
    assert "linear_probe" in capsys.readouterr().out
    assert main(["eval", str(run), "--transfer", "--images", "10", "--output_dir", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out.split("\nsee ")[0])["n_seen"] == 10


def test_stopped_and_continued_it_is_the_same(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        at_step(patch, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Stopped):
            train(MAE, tmp_path)
    train(MAE, tmp_path, resume=True)
    assert_same_bits(run, tmp_path)


def test_the_encoder_is_a_model_of_its_own(run: Path) -> None:
    opened = open_model(run)
    assert opened.num_classes == 0
    tensors = last(run).tensors["ema"]
    assert set(opened.model.state_dict()) == {name[8:] for name in tensors if name.startswith("encoder.")}
    for name, tensor in opened.model.state_dict().items():
        assert torch.equal(tensor, tensors[f"encoder.{name}"]), name
    assert opened.model(torch.rand(2, 3, 8, 8)).shape == (2, 16)


def test_a_classifier_starts_from_the_encoder(run: Path, tmp_path: Path) -> None:
    model = {"patch_size": 2, "pretrained": str(run), "new_head": True}
    train(tiny(model=model, optim={"lr": 1e-9}), tmp_path / "tuned")
    tuned, encoder = last(tmp_path / "tuned").tensors["model"], open_model(run).model.state_dict()
    for name, tensor in encoder.items():
        torch.testing.assert_close(tuned[name], tensor, atol=1e-6, rtol=0)


def test_without_a_new_head_it_says_what_to_set(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "classifier.yaml"
    settings.write_text(dump_run_config(tiny(model={"patch_size": 2}), {}))
    words = ["train", "--config", str(settings), "--output_dir", str(tmp_path / "run"), "--model.pretrained", str(run)]
    assert main(words) == 2
    assert "it has no head; set model.new_head true to train a new one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["analyze", "--images", "4"], "figures; see"),
        (["predict", "README.md"], "it has no head; `vit eval --transfer` evaluates its features"),
        (["compare", "SECOND", "--transfer"], "k-NN"),
        (["doctor"], "it has no head"),
    ],
)
def test_other_commands(
    run: Path,
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command, *rest = words
    place = [] if command in ("predict", "doctor") else ["--output_dir", str(tmp_path / "out")]
    shutil.copytree(run, tmp_path / "SECOND")
    monkeypatch.chdir(tmp_path)
    main([command, str(run), *rest, *place])
    captured = capsys.readouterr()
    assert said in captured.out + captured.err


def test_plan_counts_the_patches_that_are_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Less than a quarter hidden costs more than three quarters."""
    costs = []
    for ratio in (0.25, 0.75):
        settings = tmp_path / f"{ratio}.yaml"
        settings.write_text(dump_run_config(replace(MAE, mae=replace(MAE.mae, mask_ratio=ratio)), {}))
        assert main(["plan", "--config", str(settings)]) == 0
        out = capsys.readouterr().out
        assert f"masked autoencoder, {ratio:.0%} of the patches hidden, decoder 16 wide, 1 block" in out
        assert "forward, mean over the epochs: hidden patches, decoder included" in out
        costs.append(float(out.split("training arithmetic")[1].split()[0]))
    assert costs[0] > 1.5 * costs[1]


def changed_run(change: dict[str, Any]) -> MaskedAutoencoderRun:
    values = {
        name: MaskedAutoencoderConfig(**value) if isinstance(value, dict) else value for name, value in change.items()
    }
    return replace(MAE, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"augment": AugmentConfig(mixup_alpha=0.2, mix_group=4)}, "predicts an image's own pixels"),
        (
            {"model": tiny(model={"pretrained": "x", "name": None, "freeze_backbone": True}).model},
            "all of the encoder is trained",
        ),
        ({"mae": {"mask_ratio": 1.0}}, "it must be between 0 and 1"),
        ({"mae": {"knn_images": 3}}, "20 neighbours vote"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        changed_run(change)


def small_resnet() -> torch.nn.Module:
    return create_model("resnet18_cifar", image_size=8, width=8, num_classes=3)


@pytest.mark.parametrize(
    ("model", "place"),
    [
        (ModelConfig(name="resnet18_cifar", image_size=8, width=8), "model.name: 'resnet18_cifar'"),
        (ModelConfig(pretrained=f"{__name__}:small_resnet"), f"model.pretrained: '{__name__}:small_resnet'"),
    ],
)
def test_a_resnet_is_refused(model: ModelConfig, place: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{place} is not valid: patches are hidden from a Vision Transformer"):
        train(replace(MAE, model=model), tmp_path)


def train_in(config: MaskedAutoencoderRun, run: Path) -> dict[str, Any]:
    return train(config, run)


def test_two_processes_train_the_same_model(run: Path, tmp_path: Path) -> None:
    ours, theirs = in_processes(2, train_in, MAE, tmp_path)
    assert ours["test.loss"] == theirs["test.loss"]
    alone = json.loads((run / "summary.json").read_text())
    assert ours["test.loss"] == pytest.approx(alone["test.loss"], rel=1e-4)
    assert ours["test.knn"] == theirs["test.knn"] == alone["test.knn"]
    one, two = ([line["train.loss"] for line in read_metrics(each) if "train.loss" in line] for each in (run, tmp_path))
    assert two == pytest.approx(one, rel=1e-4)
