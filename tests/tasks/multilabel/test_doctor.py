"""`vit doctor` of a multi-label run: its own tables, others, and images without its labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.tasks.multilabel.tiny_run import write_config, write_set
from vit.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    write_set(root)
    assert main(["train", "--config", str(write_config(root)), "--output_dir", str(root / "run")]) == 0
    return root / "run"


def diagnose(run: Path, output: Path, *words: str) -> dict[str, Any]:
    assert main(["doctor", str(run), "--device", "cpu", "--output", str(output), *words]) == 0
    facts: dict[str, Any] = json.loads(output.read_text())
    return facts


def test_the_run_s_own_tables_give_the_evaluation_s_number(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = diagnose(run, tmp_path / "doctor.json")
    said = capsys.readouterr().out
    assert "mAP" in said
    assert "same labels" in said
    assert facts["num_images"] == 48
    assert facts["map"] == pytest.approx(json.loads((run / "summary.json").read_text())["test.map"])
    assert facts["top1"] is None
    assert "thresholds" in facts["conventions"]["agreement"]
    symptoms = {symptom["mistake"]: symptom for symptom in facts["symptoms"]}
    assert symptoms["blue, green, red"]["map"] < facts["map"]  # the labels are the colours
    assert symptoms["blue, green, red"]["agreement"] < 1
    assert symptoms["no antialiasing"]["agreement"] == 1  # the images have the model's size


def test_data_names_another_folder_of_tables(run: Path, tmp_path: Path) -> None:
    write_set(tmp_path, count=12)
    for words in (["--data", str(tmp_path)], ["--data.root", str(tmp_path)]):
        assert diagnose(run, tmp_path / "doctor.json", *words)["num_images"] == 12
    assert diagnose(run, tmp_path / "doctor.json", "--images", "5")["num_images"] == 5


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["--data", "{root}"], "the images have no labels"),
        (["--data", "{root}/a.png"], "the images have no labels"),
        (["--data", "fake", "--data.fake_images", "40"], "no mean average precision: the images have one class each"),
    ],
)
def test_images_without_its_labels_have_no_mean_average_precision(
    words: list[str], note: str, run: Path, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        Image.effect_noise((12, 10), 90).convert("RGB").save(tmp_path / f"{name}.png")
    facts = diagnose(run, tmp_path / "doctor.json", *(word.format(root=tmp_path) for word in words))
    assert note in str(facts["note"])
    assert facts["map"] is None
    assert all(symptom["map"] is None and symptom["logit_change"] >= 0 for symptom in facts["symptoms"])


def test_labels_that_the_model_does_not_know_are_a_note(run: Path, tmp_path: Path) -> None:
    write_set(tmp_path)
    (tmp_path / "test.csv").write_text("file,labels\ntest_0.png,violet\n")
    facts = diagnose(run, tmp_path / "doctor.json", "--data", str(tmp_path))
    assert "has no label 'violet', and the images have" in str(facts["note"])
    assert facts["num_images"] == 1
