"""`vit compare` of multi-label runs: against scikit-learn and a naive bootstrap, its files, what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score

from tests.tasks.multilabel.tiny_run import write_config, write_set
from tests.training.tiny import tiny
from vit.cli import main
from vit.comparison.metrics import Resampling
from vit.evaluation.statistics import holm, resample_counts
from vit.tasks.multilabel.comparison import comparison_metrics
from vit.tasks.multilabel.metrics import LabelPredictions
from vit.tasks.multilabel.resampling import mean_over_classes, resampled_average_precisions
from vit.training.loop import train

NAMES = ["often", "half", "once", "never"]


def predictions(seed: int, *, num_images: int = 53, help: float = 1.0) -> LabelPredictions:
    """The same labels for every seed; rounded logits, so that some are equal."""
    labels = (np.random.default_rng(9).random((num_images, 4)) < (0.7, 0.5, 0.0, 0.0)).astype(np.uint8)
    labels[7, 2] = 1
    logits = np.random.default_rng(seed).normal(size=labels.shape) + help * labels
    return LabelPredictions(
        indices=np.arange(num_images),
        labels=labels,
        logits=np.round(logits, 1).astype(np.float32),
        class_names=NAMES,
        thresholds=np.array([0.5, 0.6, 0.4, 0.5]),
        num_total=num_images,
        num_broken=0,
    )


def naive(each: LabelPredictions, rows: np.ndarray) -> list[float]:
    """scikit-learn's average precision of the chosen images; NaN without any of the class."""
    pairs = zip(each.labels[rows].T, each.probabilities[rows].T, strict=True)
    return [average_precision_score(*pair) if pair[0].any() else np.nan for pair in pairs]


def test_resampled_average_precision_is_scikit_learn_s_of_every_resample() -> None:
    models = [predictions(0), predictions(1)]
    scores = [each.probabilities for each in models]
    found = resampled_average_precisions(models[0].labels, scores, num_resamples=70, seed=3)
    (counts,) = resample_counts(53, num_resamples=70, seed=3)
    for number, times in enumerate(counts.astype(np.int64)):
        rows = np.repeat(np.arange(53), times)
        expected = [naive(each, rows) for each in models]
        np.testing.assert_allclose(found[:, number], expected, rtol=1e-12)
        np.testing.assert_allclose(mean_over_classes(found)[:, number], np.nanmean(expected, axis=1))
    assert 0.2 < np.isnan(found[0, :, 2]).mean() < 0.6  # one image of 53: e⁻¹ of the resamples are without
    assert np.isnan(found[..., 3]).all()


def test_intervals_and_p_are_those_of_a_naive_bootstrap() -> None:
    """Of 300 resamples, each a list of images, and scikit-learn's average precision of each."""
    models = {"one": predictions(0), "two": predictions(1, help=0.6), "three": predictions(2, help=0.2)}
    result = comparison_metrics(models, Resampling(300, seed=4))
    for row, each in zip(result["models"], models.values(), strict=True):
        assert row["map"] == pytest.approx(np.nanmean(naive(each, np.arange(53))))
        chosen = each.probabilities >= each.thresholds
        assert row["f1_macro"] == pytest.approx(f1_score(each.labels, chosen, average="macro", zero_division=0))
        assert row["f1_micro"] == pytest.approx(f1_score(each.labels, chosen, average="micro"))
    (counts,) = resample_counts(53, num_resamples=300, seed=4)
    draws = [np.repeat(np.arange(53), times) for times in counts.astype(np.int64)]
    drawn = {name: np.array([naive(each, rows) for rows in draws]) for name, each in models.items()}
    for pair in result["pairs"]:
        one, other = drawn[pair["first"]], drawn[pair["second"]]
        difference = np.nanmean(one, axis=1) - np.nanmean(other, axis=1)
        assert pair["map_interval"] == pytest.approx(np.quantile(difference, [0.025, 0.975]).tolist())
        fewer = min((difference <= 0).sum(), (difference >= 0).sum())
        assert pair["p"] == pytest.approx(2 * (fewer + 1) / 301)
        for place, name in enumerate(NAMES[:2]):
            by_class = pair["classes"][name]
            expected = np.quantile(one[:, place] - other[:, place], [0.025, 0.975]).tolist()
            assert by_class["interval"] == pytest.approx(expected)
            assert by_class["interval"][0] <= by_class["difference"] <= by_class["interval"][1]
    assert [pair["p_holm"] for pair in result["pairs"]] == holm([pair["p"] for pair in result["pairs"]])
    assert result["pairs"][1]["p"] < 0.05
    never = result["classes"][3]
    assert never["images"] == 0
    assert never["models"]["one"]["average_precision"] is never["models"]["one"]["interval"] is None


def test_images_that_one_model_could_not_read_are_left_out_for_all() -> None:
    whole, part = predictions(0), predictions(1).of_images(range(40))
    part = replace(part, num_broken=13)
    result = comparison_metrics({"whole": whole, "part": part}, Resampling(100))
    assert [row["n_seen"] for row in result["models"]] == [40, 40]
    assert result["models"][0]["map"] == pytest.approx(np.nanmean(naive(whole, np.arange(40))))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs `one` and `two` on the same tables; `two` has its classes in another order."""
    root = tmp_path_factory.mktemp("images")
    write_set(root)
    colours = ("red", "blue", "green")
    for part in ("train", "test"):
        rows = [line.split(",") for line in (root / f"{part}.csv").read_text().splitlines()[1:]]
        lines = [",".join([name, *(str(int(colour in labels)) for colour in colours)]) for name, labels in rows]
        (root / f"{part}_columns.csv").write_text("\n".join([f"file,{','.join(colours)}", *lines]))
    assert main(["train", "--config", str(write_config(root)), "--output_dir", str(root / "one")]) == 0
    words = ["--data.train_table", "train_columns.csv", "--data.test_table", "test_columns.csv", "--lr", "1e-6"]
    words += ["--data.label_columns", '["red", "blue", "green"]']
    assert main(["train", "--config", str(write_config(root)), "--output_dir", str(root / "two"), *words]) == 0
    return root


def compare(*words: object) -> int:
    return main(["compare", *map(str, words), "--device", "cpu"])


def test_a_run_that_has_seen_test_images_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test table names copies of six images that were trained on or chose the weights, and some new ones."""
    other, out, rows = tmp_path / "other", tmp_path / "out", (folder / "train.csv").read_text().splitlines()[1:7]
    write_set(other)
    for row in rows:
        name = row.split(",")[0]
        shutil.copy(folder / name, other / f"copy_{name}")
    with (other / "test.csv").open("a") as table:
        table.writelines(f"copy_{row}\n" for row in rows)
    words = [folder / "one", folder / "one", "--data", other, "--output_dir", out]
    assert compare(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    found = re.search(r"of 54 test images (\d+) are training images of .*one; give --data of other images", line)
    assert found
    assert not out.exists()
    assert compare(*words, "--leaky") == 0
    result = json.loads((out / "comparison.json").read_text())
    (seen, _) = result["seen_images"]
    assert seen["training"] == int(found[1]) > 0
    assert seen["training"] + seen["validation"] == 6
    assert f"{seen['training']} of 54 test images are training images" in (out / "comparison.html").read_text()


def test_runs_beside_each_other(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each run has its own numbers, whatever the order of its classes, and every file is there."""
    assert compare(folder / "one", folder / "two", "--output_dir", tmp_path) == 0
    said = capsys.readouterr().out
    result = json.loads((tmp_path / "comparison.json").read_text())
    for row in result["models"]:
        summary = json.loads((folder / row["name"] / "summary.json").read_text())
        for name in ("map", "f1_macro", "f1_micro"):
            assert row[name] == pytest.approx(summary[f"test.{name}"])
        low, high = row["map_interval"]
        assert 0 <= low <= row["map"] <= high <= 1
    gap = result["models"][0]["map"] - result["models"][1]["map"]
    assert result["pairs"][0]["map_difference"] == pytest.approx(gap)
    assert gap > 0.05
    assert "one is " in said
    assert "ahead of two in mAP (95 % interval" in said
    assert [row["class"] for row in result["classes"]] == ["blue", "green", "red"]
    assert set(result["conventions"]) >= {"map", "interval", "difference", "p", "p_holm", "thresholds"}
    for name in ("comparison.md", "comparison.html"):
        page = (tmp_path / name).read_text()
        assert "Average precision by class" in page
        assert "F1 at its own thresholds, macro" in page
    figure = json.loads((tmp_path / "figures" / "average_precision.json").read_text())
    assert set(figure["models"]) == {"one", "two"}
    assert sorted(path.name for path in (tmp_path / "predictions").iterdir()) == ["one.npz", "two.npz"]


def test_a_run_beside_itself_is_level(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(folder / "one", folder / "one", folder / "two", "--output_dir", tmp_path) == 0
    pair = json.loads((tmp_path / "comparison.json").read_text())["pairs"][0]
    assert (pair["map_difference"], pair["map_interval"], pair["p"]) == (0, [0, 0], 1)
    assert "one (1) and one (2) are level in mAP" in capsys.readouterr().out


def test_data_gives_every_run_the_same_tables(folder: Path, tmp_path: Path) -> None:
    write_set(tmp_path / "other", count=20)
    words = [folder / "one", folder / "one", "--data", tmp_path / "other", "--output_dir", tmp_path / "out"]
    assert compare(*words) == 0
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["data"]["images"] == 20


def test_what_cannot_be_compared_is_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tiny(train={"epochs": 1}), tmp_path / "classifier")
    other = tmp_path / "other"
    write_set(other, count=24)
    assert main(["train", "--config", str(write_config(other)), "--output_dir", str(tmp_path / "moved")]) == 0
    for part in ("train", "test"):
        table = other / f"{part}.csv"
        table.write_text(table.read_text().replace("red", "pink"))
    assert main(["train", "--config", str(write_config(other)), "--output_dir", str(tmp_path / "pink")]) == 0
    write_set(other, count=24)
    capsys.readouterr()
    one = folder / "one"
    wrong: dict[str, list[object]] = {
        "'multilabel' has metrics of its own: it is a run of task 'classification'; compare runs of that task only, "
        "or all models' features: --transfer --data DATA": [one, tmp_path / "classifier"],
        "it is a run of task 'classification'": [tmp_path / "classifier", one],
        "it is no training run": [one, "timm:test_vit"],
        "give at least two models": [one],
        "'moved' has other test images or labels than 'one'": [one, tmp_path / "moved"],
        "'pink' has other classes than 'one': only pink has 'pink'": [one, tmp_path / "pink"],
        "--corruptions: it has no effect here": [one, folder / "two", "--corruptions"],
        "a figure holds at most 6": [one] * 7,
    }
    for said, words in wrong.items():
        assert compare(*words, "--output_dir", tmp_path / "out") == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert said in line
    assert not (tmp_path / "out").exists()


def test_features_of_a_run_are_compared_with_any_model_s(folder: Path, tmp_path: Path) -> None:
    """Without heads there is no label set, so a classifier may stand beside it."""
    fake = ["--data", "fake", "--data.fake_images", "60", "--data.fake_classes", "3", "--data.workers", "0"]
    words = [folder / "one", "tests.cli.every_source:build", "--transfer", "--images", "6", *fake]
    assert compare(*words, "--output_dir", tmp_path) == 0
    assert (tmp_path / "transfer.html").is_file()
