"""Multi-label classification: tables, metrics against other libraries, and a run from training to prediction."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchmetrics.functional.classification import multilabel_average_precision, multilabel_f1_score

from tests.experiments.test_profile import profiled
from tests.tasks.classification.test_training import Says
from tests.tasks.multilabel.tiny_run import COLORS, write_config, write_set
from tests.test_runs import assert_no_pickle
from tests.training.tiny import tiny
from vit.analysis.model_figures import head_ablation
from vit.analysis.targets import open_target, read_images
from vit.analysis.unsupported import Unsupported
from vit.cli import main
from vit.config import AugmentConfig, DataConfig, Preprocessing
from vit.data.augment import Augment
from vit.data.augmented import AugmentedBatch
from vit.data.loading import TrainBatch
from vit.engine import make_accelerator
from vit.evaluation import evaluate_model
from vit.hub import open_model
from vit.prediction import classify_images
from vit.runs import Checkpoint, find_checkpoint, read_checkpoint, write_checkpoint
from vit.settings import resolve_run
from vit.tasks.multilabel.config import MultilabelRun, TableDataConfig
from vit.tasks.multilabel.metrics import (
    LabelPredictions,
    average_precisions,
    best_thresholds,
    decision_metrics,
    metrics_by_class,
    ranking_metrics,
)
from vit.tasks.multilabel.table import open_test, open_training
from vit.tasks.multilabel.training import Multilabel
from vit.training.checkpoints import save_session
from vit.training.interruption import Stopped
from vit.training.loop import train


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    write_set(root)
    return root


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "colors"
    assert main(["train", "--config", str(write_config(images)), "--output_dir", str(run)]) == 0
    assert_no_pickle(run)
    return run


def predictions(labels: np.ndarray, logits: np.ndarray, thresholds: np.ndarray | None = None) -> LabelPredictions:
    n, k = labels.shape
    return LabelPredictions(
        indices=np.arange(n),
        labels=labels.astype(np.uint8),
        logits=logits.astype(np.float32),
        class_names=[str(number) for number in range(k)],
        thresholds=np.full(k, 0.5) if thresholds is None else thresholds,
        num_total=n,
        num_broken=0,
    )


def test_average_precision_by_hand() -> None:
    """In order of the scores right, wrong, right: precision 1 at half of recall, 2/3 at the other half."""
    found = average_precisions(predictions(np.array([[1], [0], [1]]), np.array([[3.0], [2.0], [1.0]])))
    assert found == [pytest.approx(5 / 6)]


def test_metrics_are_those_of_torchmetrics() -> None:
    rng = np.random.default_rng(0)
    labels, logits = rng.integers(0, 2, (101, 5)), rng.normal(size=(101, 5))
    ours = predictions(labels, logits)
    scores, truth = torch.from_numpy(ours.probabilities), torch.from_numpy(labels)
    expected = multilabel_average_precision(scores, truth, num_labels=5, average="none")
    assert average_precisions(ours) == pytest.approx(expected.tolist(), abs=1e-6)
    assert ranking_metrics(ours)["map"] == pytest.approx(float(expected.mean()), abs=1e-6)
    for average in ("macro", "micro"):
        f1 = multilabel_f1_score(scores, truth, num_labels=5, average=average)
        assert decision_metrics(ours)[f"f1_{average}"] == pytest.approx(float(f1), abs=1e-6)


def test_one_label_has_the_f1_of_its_decisions() -> None:
    """One image right, one named in vain and one missed: F1 is 2 / (2 + 1 + 1)."""
    one = predictions(np.array([[1], [0], [1], [0], [0], [0]]), np.array([[2], [1], [-1], [-2], [-3], [-3]]))
    assert decision_metrics(one) == {"f1_macro": 0.5, "f1_micro": 0.5}
    assert metrics_by_class(one)["0"]["f1"] == 0.5


def test_a_class_that_no_image_has_is_in_no_mean() -> None:
    labels = np.array([[1, 0], [0, 0], [1, 0]])
    found = predictions(labels, np.zeros((3, 2)))
    assert average_precisions(found)[1] is None
    assert ranking_metrics(found)["map"] == average_precisions(found)[0]
    assert best_thresholds(found)[1] == 0.5


def test_no_threshold_has_a_better_f1() -> None:
    rng = np.random.default_rng(1)
    labels, logits = rng.integers(0, 2, (40, 3)), rng.normal(size=(40, 3))
    chosen = best_thresholds(predictions(labels, logits))
    best = decision_metrics(predictions(labels, logits, chosen))["f1_macro"]
    for threshold in np.linspace(0.01, 0.99, 99):
        others = predictions(labels, logits, np.full(3, threshold))
        assert decision_metrics(others)["f1_macro"] <= best + 1e-12


def test_labels_of_mixed_images_are_shared_out() -> None:
    labels = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0]], dtype=torch.uint8)
    batch = TrainBatch(
        images=torch.zeros(4, 3, 8, 8, dtype=torch.uint8),
        labels=labels,
        positions=torch.arange(4),
        indices=torch.arange(4),
        weights=torch.ones(4),
        aspects=torch.ones(4),
    )
    config = AugmentConfig(mixup_alpha=1.0, mix_group=4)
    _, targets = Augment(config, Preprocessing(image_size=(8, 8)), 3)(batch, seed=0, epoch=0)
    share = targets[1, 0]  # image 1 has no label and is mixed with image 2, image 0 with image 3
    assert targets[0, 1] + targets[3, 1] == pytest.approx(1)
    assert targets[1].tolist() == pytest.approx([float(share), *(2 * [float(targets[1, 1])])])
    assert 0 < float(targets[1, 1]) < 1


def test_both_forms_of_a_table_are_the_same(images: Path) -> None:
    one = open_training(TableDataConfig(root=str(images)))[0].source
    lines = ["file,blue,green,red"]
    for name, row in zip(one.files, one.labels.tolist(), strict=True):  # type: ignore[attr-defined]
        lines.append(",".join([name, *map(str, row)]))
    (images / "columns.csv").write_text("\n".join(lines))
    columns = TableDataConfig(root=str(images), train_table="columns.csv", label_columns=("blue", "green", "red"))
    other = open_training(columns)[0].source
    assert one.class_names == other.class_names == ["blue", "green", "red"]
    assert torch.equal(one.labels, other.labels)
    assert (one.labels.sum(dim=1) == 0).any()


@pytest.mark.parametrize(
    ("content", "changes", "message"),
    [
        (None, {}, r"data.train_table: there is no file "),
        ("", {}, r"data.file_column: .* has no column 'file'; it is empty"),
        ("files,labels\na.png,red\n", {}, r"data.file_column: .* has no column 'file'; did you mean 'files'\?"),
        ("file,label\na.png,red\n", {}, r"data.labels_column: .* did you mean 'label'\?"),
        ("file,red\na.png,1\n", {"label_columns": ("rad",)}, r"data.label_columns: .* did you mean 'red'\?"),
        ("file,labels\n", {}, r"data.train_table: .* it has no rows"),
        ("file,labels\na.png,red\na.png,\n", {}, r"'a.png' is there twice, in rows 2 and 3"),
        ("file,labels\nb.png,red\n", {}, r"row 2: there is no file .*b.png"),
        ("file,labels\n,red\n", {}, r"row 2 names no file"),
        ("file,labels\na.png\n", {}, r"row 2 \(a.png\) has not as many cells as the header"),
        ("file,labels\na.png,red;red\n", {}, r"a label is there twice"),
        ("file,labels\na.png,\n", {}, r"no image has a label"),
        ("file,red\na.png,yes\n", {"label_columns": ("red",)}, r"red is 'yes'; it must be 0 or 1"),
        ("file,labels\na.png,red\n", {}, r"at least 2 images"),
    ],
)
def test_a_malformed_table_is_one_line(
    content: str | None, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    if content is not None:
        (tmp_path / "train.csv").write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        open_training(TableDataConfig(root=str(tmp_path), **changes))
    assert "\n" not in str(caught.value)


def test_validation_images_without_any_label_are_found_before_training(tmp_path: Path) -> None:
    for number in range(8):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"{number}.png")
    rows = [f"{number}.png,{'red' if number < 2 else ''}" for number in range(8)]
    (tmp_path / "train.csv").write_text("\n".join(["file,labels", *rows]))
    found = set()
    for seed in range(8):
        try:
            open_training(TableDataConfig(root=str(tmp_path), val_fraction=0.25, split_seed=seed))
        except ValueError as error:
            found.add(str(error).partition("no ")[2].partition(";")[0])
    assert "validation image has a label" in found


def test_a_separator_that_divides_nothing_is_doubted(images: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_test(TableDataConfig(root=str(images), separator=" "))
    assert "looks like several; is data.separator ' ' right?" in caplog.text
    caplog.clear()
    open_test(TableDataConfig(root=str(images)))
    assert not caplog.text


def test_a_label_that_training_has_not_is_named(images: Path) -> None:
    with pytest.raises(ValueError, match=r"data.test_table: .* 'red' is none of the training table's"):
        open_test(TableDataConfig(root=str(images)), ["green", "blue", "rad"])


def test_a_wrong_test_table_is_found_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_set(tmp_path)
    (tmp_path / "test.csv").write_text("file,labels\ntest_0.png,violet\n")
    words = ["train", "--config", str(write_config(tmp_path)), "--output_dir", str(tmp_path / "run")]
    assert main(words) == 2
    assert "data.test_table: " in (said := capsys.readouterr().err)
    assert "the label 'violet' is none of the training table's" in said
    assert not list(tmp_path.glob("run/checkpoints/*"))


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("train.loss", "cross_entropy", "train.loss"),
        ("train.label_smoothing", "0.1", "train.label_smoothing"),
        ("data.name", "cifar10", "data.name"),
        ("data.separator", "", "data.separator"),
        ("data.label_columns", '["a", "a"]', "data.label_columns: .* is not valid"),
    ],
)
def test_settings_without_effect_are_errors(images: Path, setting: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"{message}: "):
        resolve_run(write_config(images), [f"--{setting}", value])


def test_a_run_learns_stores_and_says_what_it_did(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["test.map"] > 0.8
    stored = np.load(run / "predictions" / "test.npz")
    labels, scores = stored["labels"], stored["logits"]
    precisions = average_precisions(predictions(labels, scores))
    assert None not in precisions
    assert np.mean(np.array(precisions, dtype=float)) == pytest.approx(summary["test.map"])
    card = (run / "README.md").read_text()
    assert "average precision" in card
    assert "evaluated after training and chose nothing" in card
    assert (run / "figures" / "average_precision.png").is_file()
    curves = json.loads((run / "figures" / "learning_curves.json").read_text())
    assert "val.map" in curves["conventions"]
    assert any("val.map" in record for record in curves["history"])


def test_losses_are_means_over_the_classes(images: Path) -> None:
    config = resolve_run(write_config(images), ["--model.dropout_rate", "0.5"]).config
    assert isinstance(config, MultilabelRun)
    task = Multilabel(config, make_accelerator("cpu", "fp32"))
    targets = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.25, 0.75]])
    batch = AugmentedBatch(torch.rand(2, 3, 8, 8), targets, torch.arange(2), torch.ones(2))
    right = 1 / (1 + torch.tensor([1.0, 0.0, -2.0]).exp())
    expected = -(targets * right.log() + (1 - targets) * (1 - right).log()).mean(dim=1)
    assert task.losses(Says([-1.0, 0.0, 2.0]), batch, 0)[0].tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    model: Any = task.model.train()
    torch.nn.init.normal_(model.head.weight)
    first, again, later = (task.losses(model, batch, epoch)[0].tolist() for epoch in (0, 0, 1))
    assert first == again
    assert all(one != other for one, other in zip(first, later, strict=True))  # dropout by epoch, for every image


def test_the_test_takes_the_thresholds_of_the_validation(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One validation an epoch, and none at the end; each checkpoint is tested at its own thresholds."""
    calls, validate = [], Multilabel.validate

    def counted(task: Multilabel, model: Any) -> dict[str, float]:
        calls.append(validate(task, model))
        return calls[-1]

    monkeypatch.setattr(Multilabel, "validate", counted)
    train(resolve_run(write_config(images), ["--train.epochs", "3"]).config, tmp_path / "run")
    assert len(calls) == 3
    state = open_model(tmp_path / "run", select="best").state
    assert state is not None
    tested = np.load(tmp_path / "run" / "predictions" / "test.npz")["thresholds"]
    assert tested.tolist() == state["task"]["thresholds"]
    assert set(tested) != {0.5}


def test_a_checkpoints_thresholds_are_those_of_its_averaged_weights(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though the raw weights are validated too; and the average's mAP is shown, in percent."""
    for figure in ("draw_classes", "draw_learning_curves"):
        monkeypatch.setattr(f"vit.tasks.multilabel.report.{figure}", lambda *_: None)
    config = resolve_run(write_config(images), ["--train.epochs", "2", "--train.ema_decay", "0.9"]).config
    assert isinstance(config, MultilabelRun)
    train(config, tmp_path / "run")
    assert re.search(r"ema\.val\.map \d+\.\d\d%", capsys.readouterr().out)
    checkpoint = read_checkpoint(find_checkpoint(tmp_path / "run", "best"), ["model", "ema"])
    task, thresholds = Multilabel(config, make_accelerator("cpu", "fp32")), {}
    for group, tensors in checkpoint.tensors.items():
        task.model.load_state_dict(tensors)
        task.validate(task.model)
        thresholds[group] = task.thresholds
    assert checkpoint.state["task"]["thresholds"] == thresholds["ema"] != thresholds["model"]


def test_evaluation_gives_the_summary_s_numbers(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert main(["eval", str(run), "--output_dir", str(tmp_path)]) == 0
    metrics = json.loads(capsys.readouterr().out)
    for name in ("map", "f1_macro", "f1_micro"):
        assert metrics[name] == pytest.approx(summary[f"test.{name}"])
    assert list(metrics["classes"]) == ["blue", "green", "red"]
    assert (tmp_path / "test_best_auto.npz").is_file()


def test_test_images_that_were_trained_on_are_counted(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(run), "--output_dir", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []
    assert main(["eval", str(run), "--data.test_table", "train.csv", "--output_dir", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    (warning,) = json.loads(printed.out)["warnings"]
    assert f"36 of 48 test images are training images of {run}: " in warning
    assert f"12 of 48 test images are validation images of {run}, " in warning
    assert f"warning: {warning}\n" in printed.err
    assert json.loads((tmp_path / "train_best_auto.json").read_text())["warnings"] == [warning]


def test_the_labels_of_another_table_may_be_columns(
    run: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = list(csv.DictReader((images / "test.csv").read_text().splitlines()))
    names = ("blue", "green", "red")
    lines = [",".join([row["file"], *(str(int(name in row["labels"].split(";"))) for name in names)]) for row in rows]
    shutil.copytree(images, tmp_path / "images")
    (tmp_path / "images" / "columns.csv").write_text("\n".join([",".join(["file", *names]), *lines]))
    columns = ["--data.test_table", "columns.csv", "--data.label_columns", '["blue", "green", "red"]']
    found = []
    for words in ([], ["--data.root", str(tmp_path / "images"), *columns]):
        assert main(["eval", str(run), *words, "--output_dir", str(tmp_path / "output")]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["map"] == found[1]["map"]


@pytest.mark.parametrize("change", [{"map": 0.0}, {"step": 1}])
def test_an_earlier_evaluation_with_other_numbers_is_kept(change: dict[str, float], run: Path, tmp_path: Path) -> None:
    words = ["eval", str(run), "--output_dir", str(tmp_path)]
    assert main(words) == 0
    assert main(words) == 0
    files = {path.name for path in tmp_path.iterdir()}
    assert "earlier-1" not in files
    record = tmp_path / "test_best_auto.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | change))
    assert main(words) == 0
    assert {path.name for path in (tmp_path / "earlier-1").iterdir()} == files


def test_data_is_the_folder_of_the_tables(
    run: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_set(other, count=8)
    config = resolve_run(write_config(images), ["--data", str(other)]).config
    assert isinstance(config, MultilabelRun)
    assert isinstance(config.data, TableDataConfig)
    assert (config.data.name, config.data.root) == ("table", str(other))
    assert main(["eval", str(run), "--data", str(other), "--output_dir", str(tmp_path / "output")]) == 0
    assert json.loads(capsys.readouterr().out)["n_total"] == 8
    for words in (["train", "--config", str(write_config(images))], ["eval", str(run)]):
        assert main([*words, "--data", "cifar10"]) == 2
        assert "--data: 'cifar10' is not valid: it is no folder" in capsys.readouterr().err


def test_thresholds_are_for_averaged_weights_alone(
    run: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint of a run that averaged its weights, which keeps both."""
    averaged = tmp_path / "averaged"
    step = find_checkpoint(run, "best")
    stored = read_checkpoint(step, ["model"])
    averaged.mkdir()
    tensors = dict.fromkeys(("model", "ema"), stored.tensors["model"])
    write_checkpoint(averaged, stored.state["progress"]["step"], Checkpoint(stored.state, tensors))
    image = str(next(images.glob("*.png")))
    assert main(["predict", str(averaged), image]) == 0
    capsys.readouterr()
    assert main(["predict", str(averaged), image, "--weights", "raw"]) == 2
    assert "thresholds were chosen for the averaged weights" in capsys.readouterr().err


def test_prediction_names_every_label_at_its_threshold(
    run: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [line.split(",")[0] for line in (images / "test.csv").read_text().splitlines()[1:9]]
    assert main(["predict", str(run), *(str(images / name) for name in names)]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in names)
    stored = np.load(run / "predictions" / "test.npz")
    probabilities = 1 / (1 + np.exp(-stored["logits"][:8].astype(np.float64)))
    assert said.count("%") == int((probabilities >= stored["thresholds"]).sum())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of the run's own classes, of which an image has one."""
    root = tmp_path_factory.mktemp("folders")
    for part in ("train", "test"):
        for color, place in COLORS.items():
            (root / part / color).mkdir(parents=True)
            for index in range(4):
                pixels = np.random.default_rng(index).integers(0, 60, (8, 8, 3))
                pixels[..., place] += 180
                Image.fromarray(pixels.astype(np.uint8)).save(root / part / color / f"{index}.png")
    return root


@pytest.mark.parametrize(
    "command",
    [
        "compare {run} {run} --finetune --data {folders}",
        "train --data.name imagefolder --data.root {folders} --data.workers 0 --distill.teacher {run}",
    ],
)
def test_a_command_that_needs_one_label_an_image_refuses(
    command: str, run: Path, folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.format(run=run, folders=folders).split()
    assert main([*words, "--output_dir", str(tmp_path / "output")]) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said, said
    assert f"'{run}' is not valid: it gives an image any number of labels" in said


def test_a_baseline_is_refused_before_the_evaluation(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny(train={"epochs": 1}), tmp_path / "classifier")
    capsys.readouterr()
    words = ["eval", str(tmp_path / "classifier"), "--baseline", str(run), "--output_dir", str(tmp_path / "output")]
    assert main(words) == 2
    said = capsys.readouterr()
    assert f"'{run}' is not valid: it gives an image any number of labels" in said.err
    assert said.out == ""
    assert not (tmp_path / "output").exists()


def test_functions_that_need_one_label_an_image_refuse(run: Path, folders: Path, tmp_path: Path) -> None:
    opened, data = open_model(run), DataConfig(name="imagefolder", root=str(folders), workers=0)
    message = "model: .* gives an image any number of labels, .* use `vit eval` or `vit predict`"
    with pytest.raises(ValueError, match=message):
        classify_images(opened, [folders / "test" / "red" / "0.png"], "cpu")
    with pytest.raises(ValueError, match=message):
        evaluate_model(opened, data, tmp_path, device="cpu")
    images = read_images(data, opened.preprocessing)
    with pytest.raises(Unsupported, match="any number of labels"):
        head_ablation(open_target(opened, replace(images, class_names=tuple(opened.class_names)), device="cpu"))


def test_features_of_a_run_are_evaluated_on_images_of_one_class(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = ["--data", "fake", "--data.fake_images", "60", "--data.fake_classes", "3", "--data.workers", "0"]
    assert main(["eval", str(run), "--transfer", *fake, "--device", "cpu", "--output_dir", str(tmp_path)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["head"].startswith("not evaluated: ")
    assert "any number of labels" in said["head"]
    assert said["transfer"]["head"]["num_train"] > 0


def test_a_run_is_analysed_and_exported(run: Path, folders: Path, tmp_path: Path) -> None:
    picture = str(folders / "test" / "red" / "0.png")
    figures = ["--figures", "attention_distance", "head_ablation", "--output_dir", str(tmp_path / "a")]
    assert main(["analyze", str(run), "--data", picture, *figures]) == 0
    assert (tmp_path / "a" / "analysis.html").is_file()
    assert json.loads((tmp_path / "a" / "analysis.json").read_text())["made_of"]["images_of"] == picture
    assert main(["analyze", str(run), "--images", "5", *figures[:2], "--output_dir", str(tmp_path / "own")]) == 0
    own = json.loads((tmp_path / "own" / "analysis.json").read_text())["made_of"]
    assert (own["images"], own["images_of"]) == (5, "the run's test images")
    assert main(["export", str(run), "--format", "torch", "--output", str(tmp_path / "model.pt2")]) == 0
    told = json.loads((tmp_path / "model.pt2.json").read_text())
    assert told["conventions"]["output"] == "probabilities float32 (batch, classes), by a sigmoid"
    proof = told["proof"]
    assert proof["images"] == f"validation images of {run}"
    assert (proof["agreement"], proof["difference"]) == (1, 0), "no threshold is the probability of an image"
    few = ["--logits", "--images", "3", "--output", str(tmp_path / "logits.pt2")]
    assert main(["export", str(run), "--format", "torch", *few]) == 0
    told = json.loads((tmp_path / "logits.pt2.json").read_text())
    assert told["proof"]["num_images"] == 3
    assert told["proof"]["model_top1"] == pytest.approx(told["proof"]["file_top1"])


def test_a_stopped_run_continues_to_the_same_bits(
    run: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vit.training import loop

    config = resolve_run(write_config(images)).config
    count = [0]

    def stop_in_the_third(session: Any) -> None:
        save_session(session)
        count[0] += 1
        if count[0] == 3:
            raise Stopped(15, session.progress.step)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_session", stop_in_the_third)
        with pytest.raises(Stopped):
            train(config, tmp_path / "run")
    train(config, tmp_path / "run", resume=True)
    first, second = (np.load(place / "predictions" / "test.npz") for place in (run, tmp_path / "run"))
    for name in first.files:
        assert np.array_equal(first[name], second[name]), name


def test_a_profile_times_decoding_and_validation(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = profiled(resolve_run(write_config(images)).config, tmp_path, monkeypatch)
    assert set(found.loading_ms) == {"read", "decode"}
    assert min(found.loading_ms.values()) > 0
    assert found.evaluation["images"] == found.evaluation["of_images"] > 0
