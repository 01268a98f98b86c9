"""Pretrained models fine-tuned and compared: equal images for all, their own preprocessing, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.models import save_for_hf

from tests.training.tiny import assert_same_bits, last
from vit.cli import main
from vit.config import ResNetConfig
from vit.evaluation.predictions import Predictions
from vit.evaluation.statistics import wilson_interval
from vit.experiments import planned_runs
from vit.experiments.finetuning_table import seed_statistics
from vit.models import ResNet
from vit.settings import read_run_config
from vit.tasks.classification.config import ClassificationRun
from vit.training.loop import train
from vit.weights.layout import invert_rules
from vit.weights.resnet import CIFAR

CLASSES = ("bright", "dark", "grey")
SAID = ["--mean", "0.4", "0.5", "0.6", "--std", "0.2", "0.3", "0.4"]
SHORT = ["--epochs", "2", "--data.batch_size", "11", "--data.workers", "0", "--device", "cpu", "--precision", "fp32"]


@pytest.fixture(scope="module", autouse=True)
def _without_pictures_of_runs() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`images`, a ViT as timm's folder (which squashes), and a CIFAR ResNet as a `.th` file with as many classes."""
    path = tmp_path_factory.mktemp("pretrained")
    generator = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 5)):
        for name, level in zip(CLASSES, (180, 20, 100), strict=True):
            place = path / "images" / part / name
            place.mkdir(parents=True)
            for index in range(count):
                pixels = level + generator.integers(0, 60, (20, 16, 3))
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{index}.png")
    torch.manual_seed(0)
    save_vit(path / "small_vit")
    resnet = ResNet(
        ResNetConfig(depth=20, width=4, stem="cifar", shortcut="padding", num_classes=3, image_size=(32, 32))
    )
    tensors = {name: value for name, value in resnet.state_dict().items() if value.dim() > 0}
    torch.save({"state_dict": invert_rules(CIFAR, tensors, resnet.config).tensors}, path / "small_resnet.th")
    return path


def save_vit(place: Path) -> None:
    import timm

    args = {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 2}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=7, **args)
    model.pretrained_cfg |= {
        **{"input_size": (3, 32, 32), "crop_pct": 0.9, "crop_mode": "squash", "interpolation": "bilinear"},
        **{"mean": (0.1, 0.2, 0.3), "std": (0.7, 0.8, 0.9), "tag": "augreg_in21k"},
    }
    save_for_hf(model, place, model_config={"num_classes": 7}, model_args=args, safe_serialization=True)


def words(folder: Path, out: Path, *more: str) -> list[str]:
    models = [str(folder / "small_vit"), str(folder / "small_resnet.th")]
    data = ["--data", str(folder / "images"), "--output_dir", str(out)]
    return ["compare", *models, "--finetune", *data, *SAID, *SHORT, *more]


def watch(monkeypatch: pytest.MonkeyPatch, stop_at: int | None = None) -> list[tuple[str, bool]]:
    """Names of the runs that are trained from now on, and whether they continue; the one at `stop_at` is killed."""
    trained: list[tuple[str, bool]] = []

    def watched(config: ClassificationRun, run: Path, *, resume: bool, origins: dict[str, str]) -> dict[str, Any]:
        if len(trained) == stop_at:
            raise KeyboardInterrupt
        trained.append((run.name, resume))
        return train(config, run, resume=resume, origins=origins)

    monkeypatch.setattr(planned_runs, "train", watched)
    return trained


@pytest.fixture(scope="module")
def compared(folder: Path) -> Path:
    """The command, never interrupted."""
    assert main(words(folder, folder / "whole")) == 0
    return folder / "whole"


def result_of(out: Path) -> Any:
    return json.loads((out / "comparison.json").read_text())


def timeless(result: Any) -> Any:
    """Without what the clock says and where the runs lie."""
    for row in result["finetuning"]["runs"]:
        del row["seconds"], row["images_per_second"], row["run"]
    for model in [*result["models"], *result.get("seen_images", ())]:
        model.pop("source", None)
        model.pop("run", None)
    return result


# ------------------------------------------------------------------ what is trained and said


def test_all_see_the_same_images_as_often_by_the_recipe_of_their_kind(compared: Path) -> None:
    vit, resnet = rows = result_of(compared)["finetuning"]["runs"]
    assert [row["name"] for row in rows] == ["small_vit", "small_resnet"]
    assert [(row["num_images"], row["images_seen"], row["epochs"]) for row in rows] == [(33, 66, 2)] * 2
    assert vit["data.fingerprint"] == resnet["data.fingerprint"]
    configs: list[Any] = [read_run_config(compared / "runs" / row["name"] / "config.yaml")[0] for row in rows]
    assert [config.optim.name for config in configs] == ["adamw", "sgd"]
    assert [config.optim.layer_decay for config in configs] == [0.75, 1]
    assert configs[0].augment == configs[1].augment
    assert configs[0].seed == configs[1].seed
    assert vit["recipe"] == (
        "adamw, lr 0.00025, weight decay 0.05, cosine, layer decay 0.75, warm-up 0.25 epochs, batch 11"
    )
    assert vit["pretraining_data"] == "ImageNet-21k"
    assert resnet["pretraining_data"] == "not stated"


def test_images_are_prepared_as_each_source_says(compared: Path) -> None:
    stored = {
        name: last(compared / "runs" / name).state["task"]["preprocessing"] for name in ("small_vit", "small_resnet")
    }
    vit, resnet = stored["small_vit"], stored["small_resnet"]
    assert (vit["mean"], vit["std"]) == ([0.1, 0.2, 0.3], [0.7, 0.8, 0.9])
    assert (vit["crop_fraction"], vit["squash"], vit["interpolation"]) == (0.9, True, "bilinear")
    assert (resnet["mean"], resnet["std"]) == ([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])
    assert (resnet["crop_fraction"], resnet["squash"], resnet["interpolation"]) == (1, False, "bicubic")
    assert vit["image_size"] == resnet["image_size"] == [32, 32]


def test_heads_are_new_also_where_the_classes_agree(compared: Path) -> None:
    for name in ("small_vit", "small_resnet"):
        config: Any = read_run_config(compared / "runs" / name / "config.yaml")[0]
        assert config.model.new_head
    assert "no accuracy before fine-tuning" in (compared / "comparison.md").read_text()


def test_the_page_tells_of_the_training_and_of_the_comparison(compared: Path) -> None:
    result, page = result_of(compared), (compared / "comparison.html").read_text()
    told = {model["name"]: model for model in result["models"]}
    for row in result["finetuning"]["runs"]:
        answers = Predictions.load(compared / "runs" / row["name"] / "predictions/test.npz")
        right = int((answers.logits.argmax(axis=1) == answers.labels).sum())
        model = told[row["name"]]
        assert row["test.top1"] == model["top1"] == right / 15
        assert model["top1_interval"] == pytest.approx(wilson_interval(right, 15))
        assert model["predictions"] == "run"
    (pair,) = result["pairs"]
    assert {"p", "p_holm", "top1_interval", "only_first"} <= pair.keys()
    headings = [part.partition("<")[0] for part in page.split("<h2>")[1:]]
    assert headings[:3] == ["Fine-tuning", "Models", "Differences"]
    assert "66 in 2 epochs" in page
    assert "sgd, lr 0.01, weight decay 0.0001, cosine, batch 11" in page
    assert "ImageNet-21k" in page


def test_a_run_is_repeated_by_train_alone(compared: Path, tmp_path: Path) -> None:
    run = compared / "runs/small_vit"
    assert main(["train", "--config", str(run / "config.yaml"), "--output_dir", str(tmp_path / "again")]) == 0
    assert_same_bits(run, tmp_path / "again")


# ------------------------------------------------------------------ what is trained again


def test_killed_between_two_trainings_the_first_is_not_trained_again(
    folder: Path, compared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        assert watch(patch, stop_at=1) == []
        assert main(words(folder, tmp_path)) == 130
    assert (tmp_path / "runs/small_vit/summary.json").is_file()
    assert not (tmp_path / "comparison.json").exists()
    trained = watch(monkeypatch)
    assert main(words(folder, tmp_path)) == 0
    assert trained == [("small_resnet", False)]
    assert timeless(result_of(tmp_path)) == timeless(result_of(compared))
    assert main(words(folder, tmp_path)) == 0
    assert len(trained) == 1, "finished runs are only read"


def test_further_seeds_train_only_what_is_missing(
    folder: Path, compared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(compared, tmp_path, dirs_exist_ok=True)
    trained = watch(monkeypatch)
    assert main(words(folder, tmp_path, "--seeds", "2")) == 0
    assert trained == [("small_vit-seed-1", False), ("small_resnet-seed-1", False)]
    result = result_of(tmp_path)
    assert [row["seed"] for row in result["finetuning"]["runs"]] == [0, 0, 1, 1]
    assert len(result["models"]) == 2
    assert "Differences over seeds" in (tmp_path / "comparison.md").read_text()
    assert main(words(folder, tmp_path)) == 0
    assert len(result_of(tmp_path / "earlier-2")["finetuning"]["runs"]) == 4, "beside the one that was copied"
    capsys.readouterr()
    assert main(words(folder, tmp_path, "--optim.weight_decay", "0.3")) == 2
    assert "optim.weight_decay: 0.3 is not valid: the run in" in capsys.readouterr().err


def test_a_run_of_other_weights_of_the_same_name_is_not_taken(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where those that it began with are gone, which a run that is resumed may have moved."""
    data = ["--finetune", "--data", str(folder / "images"), "--output_dir", str(tmp_path / "out"), *SHORT]
    shutil.copytree(folder / "small_vit", tmp_path / "a" / "small_vit")
    assert main(["eval", str(tmp_path / "a" / "small_vit"), *data]) == 0
    (tmp_path / "a").rename(tmp_path / "b")
    assert main(["eval", str(tmp_path / "b" / "small_vit"), *data]) == 2
    assert "model.pretrained: " in capsys.readouterr().err


def test_a_run_folder_can_be_fine_tuned_too(folder: Path, compared: Path, tmp_path: Path) -> None:
    models = [str(compared / "runs/small_vit"), str(folder / "small_vit")]
    data = ["--data", str(folder / "images"), "--output_dir", str(tmp_path)]
    sizes = ["--image_size", "48", "32", "--epochs", "1"]
    assert main(["compare", *models, "--finetune", *data, *SHORT[2:], *sizes]) == 0
    found = {row["image_size"] for row in result_of(tmp_path)["finetuning"]["runs"]}
    assert found == {"48×48", "32×32"}


# ------------------------------------------------------------------ one model


def words_of_one(folder: Path, out: Path, *more: str) -> list[str]:
    data = ["--data", str(folder / "images"), "--output_dir", str(out)]
    return ["eval", str(folder / "small_vit"), "--finetune", *data, *SHORT, *more]


def test_one_model_is_fine_tuned_as_several_are(
    folder: Path, compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(words_of_one(folder, tmp_path)) == 0
    printed = json.loads(capsys.readouterr().out)
    (written,) = tmp_path.glob("small_vit_imagefolder-images-*.json")
    assert json.loads(written.read_text()) == printed
    assert_same_bits(tmp_path / "runs/small_vit", compared / "runs/small_vit")
    ours, theirs = (timeless(each)["finetuning"] for each in (printed | {"models": []}, result_of(compared)))
    assert ours["runs"] == [row for row in theirs["runs"] if row["name"] == "small_vit"]
    assert printed["top1"] == ours["runs"][0]["test.top1"]
    assert printed["top1_interval"] == pytest.approx(wilson_interval(round(15 * printed["top1"]), 15))


def test_one_model_continues_and_a_comparison_takes_its_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        watch(patch, stop_at=1)
        assert main(words_of_one(folder, tmp_path, "--seeds", "2")) == 130
    trained = watch(monkeypatch)
    assert main(words_of_one(folder, tmp_path, "--seeds", "2")) == 0
    assert trained == [("small_vit-seed-1", False)]
    assert not (tmp_path / "earlier-1").exists()
    assert main(words_of_one(folder, tmp_path)) == 0
    (before,) = (tmp_path / "earlier-1").iterdir()
    assert len(json.loads(before.read_text())["finetuning"]["runs"]) == 2
    assert main(words(folder, tmp_path)) == 0
    assert trained[1:] == [("small_resnet", False)]


def test_one_model_that_cannot_be_fine_tuned(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for changed, said in (
        (["eval", "vit_tiny_patch16_224", "--finetune", "--data", str(folder / "images")], "it has no trained weights"),
        (["eval", str(folder / "small_vit"), "--finetune"], "--data: required"),
        (["eval", str(folder / "small_vit"), "--finetune", "--data", "digits", "--corruptions"], "--corruptions"),
        (["eval", *[str(folder / "small_vit")] * 2, "--finetune", "--data", "digits"], "unrecognized arguments"),
    ):
        assert main([*changed, "--output_dir", str(tmp_path / "out")]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert said in line
        assert not (tmp_path / "out").exists()


def test_accuracies_over_seeds_by_hand() -> None:
    top1 = {("a", 0): 0.5, ("b", 0): 0.25, ("a", 1): 0.75, ("b", 1): 0.75}
    found = seed_statistics([{"name": name, "seed": seed, "test.top1": value} for (name, seed), value in top1.items()])
    assert found["accuracies"]["a"]["mean"] == 0.625
    assert found["accuracies"]["a"]["sd"] == pytest.approx(0.125 * 2**0.5)
    (pair,) = found["differences"]
    assert (pair["first"], pair["second"], pair["mean"]) == ("a", "b", 0.125)
    assert pair["by_seed"] == {"0": 0.25, "1": 0}
    assert pair["high"] - pair["mean"] == pytest.approx(12.706 * 0.125, rel=1e-3)  # t of one degree, sd / √2


# ------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("models", "more", "said"),
    [
        ([], [], "the following arguments are required: MODEL"),
        (["small_vit"], [], "give at least two models to compare; `vit eval MODEL --finetune` fine-tunes one"),
        (["small_vit", "small_resnet.th"], [], "preprocessing: it is missing"),
        (["small_vit", "small_vit"], SAID, "--mean: [0.4, 0.5, 0.6] is not valid: every model's source says how"),
        (["small_vit", "small_resnet.th"], SAID[:4], "--mean: [0.4, 0.5, 0.6] is not valid: give --mean and --std"),
        (["small_vit", "=vit_tiny_patch16_224"], [], "it has no trained weights to fine-tune"),
        (["small_vit", "=tests.cli.every_source:build"], [], "only models that this package computes can be trained"),
        (["small_vit", "small_vit"], ["--image_size", "30"], "the nearest image sizes are 16 or 32"),
        (["small_vit", "small_vit"], ["--image_size", "32", "32", "32"], "--image_size: [32, 32, 32] is not valid"),
        (["small_vit", "small_vit"], ["--architecture", "vit"], "--architecture: 'vit' is not valid"),
        (["small_vit", "small_vit"], ["--seeds", "0"], "--seeds: 0 is not valid"),
        (["small_vit", "small_vit"], ["--data.mean", "[0, 0, 0]"], "data.mean: [0.0, 0.0, 0.0] is not valid: it is"),
        (["small_vit", "small_vit"], ["--resamples", "99"], "--resamples: 99 is not valid"),
        (
            ["small_vit", "small_resnet.th"],
            [*SAID, "--data.batch_size", "8", "--train.accumulation_steps", "8"],
            "the last step of an epoch, cut into train.accumulation_steps × processes, gives a micro-batch of 1 images",
        ),
        (["small_vit", "small_vit"], ["--optim.lear", "1"], "--optim.lear: there is no such setting"),
        (["small_vit", "small_vit"], ["--vit_recipe", "text/copying_rnn"], "its task is translation"),
        (["small_vit", "small_vit"], ["--vit_recipe", "finetune_yours"], "--vit_recipe: 'finetune_yours' is neither"),
        (["small_vit", "small_vit"], ["--transfer"], "unrecognized arguments: --transfer"),
    ],
)
def test_one_line_and_nothing_trained(
    models: list[str],
    more: list[str],
    said: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained = watch(monkeypatch)
    places = [name.removeprefix("=") if name.startswith("=") else str(folder / name) for name in models]
    data = ["--data", str(folder / "images"), "--output_dir", str(tmp_path)]
    assert main(["compare", *places, "--finetune", *data, *more]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
    assert trained == []
    assert list(tmp_path.iterdir()) == []


def test_data_without_images_to_train_on_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "images/test", tmp_path / "untrained/test")
    data = ["--data", str(tmp_path / "untrained"), "--output_dir", str(tmp_path / "out")]
    assert main(["compare", *[str(folder / "small_vit")] * 2, "--finetune", *data]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "train" in line.replace("untrained", "")
    assert main(["compare", *[str(folder / "small_vit")] * 2, "--finetune"]) == 2
    assert "--data: required" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("flip: true", "flip: false"), "augment.flip: False is not valid"),
        (("epochs: 5", "epochs: 6"), "train.epochs: 6 is not valid"),
        (("batch_size: 128", "batch_size: 128\n  fraction: 0.5"), "data.fraction: 0.5 is not valid"),
        (
            ("batch_size: 128", "batch_size: 128\n  mean: [0, 0, 0]"),
            "data.mean: [0.0, 0.0, 0.0] is not valid: it is each",
        ),
    ],
)
def test_recipes_that_would_not_show_the_same_images_are_refused(
    change: tuple[str, str], said: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "own.yaml"
    text = Path("configs/finetune_your_images_resnet.yaml").read_text()
    assert change[0] in text
    recipe.write_text(text.replace(*change))
    assert main([*words(folder, tmp_path / "out")[: -len(SHORT)], "--resnet_recipe", str(recipe)]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
