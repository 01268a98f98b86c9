"""Frozen features compared: the numbers by hand, and the command from its models to its files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.image_folders import make_folder, truncate
from vit.cli import main
from vit.comparison.metrics import Resampling
from vit.comparison.transfer import compare_kind
from vit.evaluation.statistics import holm, mcnemar, wilson_interval
from vit.evaluation.transfer_evaluation import KindEvaluation

FAKE = ["--data", "fake", "--data.fake_images", "60", "--data.fake_classes", "3", "--data.workers", "0"]
LABELS = np.array([0, 1, 0, 1, 0, 1, 0, 1])


def judged(wrong: list[int], few_shot_wrong: list[list[int]], missing: int | None = None) -> KindEvaluation:
    """Features whose predictions are wrong for these of eight images, one of which may be missing."""

    def classes(places: list[int]) -> np.ndarray:
        predicted = LABELS.copy()
        predicted[places] = 1 - predicted[places]
        return predicted[rows]

    rows = np.array([row for row in range(8) if row != missing])
    predicted = {"knn": classes(wrong)[None], "few_shot_1": np.stack([classes(each) for each in few_shot_wrong])}
    return KindEvaluation("head", 4, predicted, torch.from_numpy(rows), LABELS[rows], 10)


def test_accuracies_and_pairs_by_hand() -> None:
    models = {
        "a": judged([0], [[0], [0, 1]]),
        "b": judged([1, 2, 3], [[1, 2, 3], [2]]),
        "c": judged([], [[], []]),
    }
    found = compare_kind(models, Resampling(2000))
    assert found["accuracies"]["knn"]["a"] == {"accuracy": 7 / 8, "interval": list(wilson_interval(7, 8))}
    assert found["accuracies"]["few_shot_1"]["a"]["accuracy"] == 1 - 1.5 / 8
    low, high = found["accuracies"]["few_shot_1"]["a"]["interval"]
    assert low < 1 - 1.5 / 8 < high
    first, *_ = found["pairs"]["knn"]
    assert (first["first"], first["second"], first["difference"]) == ("a", "b", 2 / 8)
    assert (first["both"], first["only_first"], first["only_second"], first["neither"]) == (4, 3, 1, 0)
    assert first["p"] == mcnemar(3, 1)
    assert [pair["p_holm"] for pair in found["pairs"]["knn"]] == holm([pair["p"] for pair in found["pairs"]["knn"]])
    few_shot = found["pairs"]["few_shot_1"][0]
    assert few_shot["difference"] == pytest.approx((4 / 2 - 3 / 2) / 8)
    assert "p" not in few_shot, "a mean of seeds is no count"
    identical = compare_kind({"a": models["a"], "again": models["a"]}, Resampling(2000))["pairs"]["knn"][0]
    assert (identical["difference"], identical["interval"], identical["p"]) == (0, [0, 0], 1)


def test_images_that_one_model_could_not_read_are_left_out() -> None:
    found = compare_kind({"a": judged([0], [[0]], missing=5), "b": judged([5], [[5]])}, Resampling(2000))
    assert found["accuracies"]["knn"]["a"]["accuracy"] == 6 / 7
    assert found["accuracies"]["knn"]["b"]["accuracy"] == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("transfer")
    models = ["timm:test_vit", "vit_tiny_patch16_32", "tests.cli.every_source:build", "--random_weights"]
    options = ["--transfer", "--features", "head", "class+patches-4", "--output_dir", str(out), "--device", "cpu"]
    assert main(["compare", *models, *options, *FAKE, "--precision", "fp32"]) == 0
    return out


def test_every_file_is_there_and_the_same_the_second_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads((folder / "transfer.json").read_text())
    assert list(result["features"]) == ["head", "class+patches-4"]
    names = [model["name"] for model in result["models"]]
    for judged_kind in result["features"].values():
        assert list(judged_kind["accuracies"]) == ["knn", "few_shot_1", "few_shot_5", "few_shot_10", "linear_probe"]
        for protocol, accuracies in judged_kind["accuracies"].items():
            assert list(accuracies) == names
            pairs = judged_kind["pairs"][protocol]
            assert len(pairs) == 3
            for pair in pairs:
                gap = accuracies[pair["first"]]["accuracy"] - accuracies[pair["second"]]["accuracy"]
                assert pair["difference"] == pytest.approx(gap)
    wide = result["features"]["class+patches-4"]
    assert list(wide["widths"].values()) == [5 * 64, 5 * 192, 16]
    assert list(wide["read"].values()) == ["class+patches-4", "class+patches-4", "head"]
    for model in result["models"]:
        assert model["params"] > 0
        assert model["gmacs"] > 0
        assert model["images_per_second"] > 0
    assert [model["pretraining_data"] for model in result["models"]] == ["nothing", "nothing", "not stated"]
    page, text = ((folder / f"transfer.{kind}").read_text() for kind in ("html", "md"))
    for content in (page, text):
        assert "Accuracy: class+patches-4" in content
        assert "Pooled maps stand for these features" in content
    assert " images/s | " in text
    assert page.count("<img ") == text.count("![") == 4
    # a second time everything is read, and the result is the same
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    test_options = ["--transfer", "--features", "head", "class+patches-4", "--output_dir", str(folder)]
    models = ["timm:test_vit", "vit_tiny_patch16_32", "tests.cli.every_source:build", "--random_weights"]
    assert main(["compare", *models, *test_options, *FAKE, "--precision", "fp32", "--device", "cpu"]) == 0
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before
    assert json.loads((folder / "transfer.json").read_text()) == result
    said = capsys.readouterr().out
    assert "linear probe" in said
    assert f"see {folder}/transfer.html" in said


def test_the_number_of_images_can_be_limited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "vit_tiny_patch16_32", "--transfer", *FAKE, "--train_images", "30", "--images", "6"]
    assert main([*words, "--output_dir", str(tmp_path), "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)["transfer"]["head"]
    assert found["num_train"] == 30
    assert found["linear_probe"] * 6 == pytest.approx(round(found["linear_probe"] * 6))
    assert "few_shot_10" in found
    assert "few_shot_25" not in found
    words[words.index("30")] = "15"
    assert main([*words, "--output_dir", str(tmp_path), "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)["transfer"]["head"]
    assert found["num_train"] == 15
    assert "few_shot_5" in found
    assert "few_shot_10" not in found, "as the answers after other training images have it"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--features", "class"], "--features: "),
        (["--train_images", "9"], "--train_images: "),
        (["--transfer", "--features", "x"], "--features: 'x' is not valid: choose from head, class"),
        (["--transfer", "--train_images", "0"], "--train_images: 0 is not valid: it must be above 0"),
        (["--transfer", "--train_images", "4"], "a linear probe needs at least two images of every class"),
        (["--transfer", "--speed"], "--speed: True is not valid: --transfer compares features, not heads"),
        (["--transfer", "--features", "patches-4"], "has 2 blocks"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ["tests.cli.every_source:build", "tests.comparison.test_transfer:shallow"]
    assert main(["compare", *models, *words, *FAKE, "--output_dir", str(tmp_path / "out"), "--device", "cpu"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
    assert not (tmp_path / "out").exists()


def test_images_that_could_not_be_read_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = make_folder(tmp_path / "images" / "train", {"a": 5, "b": 5, "c": 5}).parent
    make_folder(images / "test", {"a": 3, "b": 3, "c": 3})
    for place in ("train/a/001.png", "test/b/000.png", "test/c/002.png"):
        truncate(images / place)
    models = ["tests.cli.every_source:build", "tests.comparison.test_transfer:shallow"]
    given = ["--data", str(images), "--data.on_broken_image", "skip", "--data.workers", "0"]
    assert (
        main(["compare", *models, "--transfer", *given, "--output_dir", str(tmp_path / "out"), "--device", "cpu"]) == 0
    )
    said = "3 images could not be read; features are evaluated on the others."
    assert json.loads((tmp_path / "out" / "transfer.json").read_text())["warnings"].count(said) == 1
    assert said in capsys.readouterr().out


def shallow() -> tuple[torch.nn.Module, object, list[str]]:
    """A Vision Transformer of two blocks, as a user would give it."""
    from vit import create_model
    from vit.config import Preprocessing

    model = create_model("vit", num_classes=3, depth=2, image_size=16)
    return model, Preprocessing(image_size=(16, 16)), ["a", "b", "c"]


def test_a_head_of_other_classes_does_not_keep_features_from_being_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", "tests.comparison.test_transfer:shallow", *FAKE, "--output_dir", str(tmp_path), "--device", "cpu"]
    assert main(words) == 2
    capsys.readouterr()
    assert main([*words, "--transfer"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["head"].startswith("not evaluated: model: ")
    assert "top1" not in found
    assert 0 <= found["transfer"]["head"]["knn"] <= 1
