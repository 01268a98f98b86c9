"""Every notebook runs from top to bottom; training uses a tiny set, in a temporary folder."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from PIL import Image

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SECONDS = 60
"""Processor time of one thread; with more, threads that wait for each other would count as well."""


def write_images(root: Path, num_images: int = 12) -> None:
    """Two classes, bright and dark, of 32×32 noise."""
    generator = np.random.default_rng(0)
    for part in ("train", "val"):
        for name, level in (("bright", 200), ("dark", 20)):
            folder = root / part / name
            folder.mkdir(parents=True)
            for index in range(num_images):
                pixels = level + generator.integers(0, 40, (32, 32, 3))
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.png")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def outputs_of(name: str) -> list[Any]:
    """The outputs of a notebook's cells, run in the notebook's folder."""
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": NOTEBOOKS}}).execute()
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def num_pictures(outputs: list[Any]) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.slow
def test_attention_from_the_ground_up_says_the_numbers_of_the_systems_page() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    outputs = outputs_of("01_attention_from_the_ground_up.ipynb")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < SECONDS
    assert num_pictures(outputs) == 11
    assert not [output for output in outputs if output.get("name") == "stderr"]
    said = "".join(output.get("text", "") for output in outputs)
    for expected in (
        "[0.8275, 0.1725, 0.0000, 0.0000]",
        "[0.2377, 0.0392, 0.7232, 0.0000]",
        "tensor([0.8808, 0.1192])",
        "[0.2912, 0.0106, 0.0982, 0.0625, 0.4917, 0.0458]",
        "has 28 numbers",
        "output: tensor([0.0000, 0.0000, 0.0000, ",
        "with two 0.00",
    ):
        assert expected in said


@pytest.mark.slow
def test_train_on_your_images_runs_and_leaves_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "images")
    monkeypatch.setenv("VIT_IMAGES", str(tmp_path / "images"))
    monkeypatch.setenv("VIT_EPOCHS", "2")
    monkeypatch.setenv("VIT_RUN", str(tmp_path / "run"))
    outputs = outputs_of("02_train_on_your_images.ipynb")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["test.n_seen"] == 24
    assert summary["dataset"] == "imagefolder"
    assert num_pictures(outputs) >= 3


@pytest.mark.slow
def test_vit_against_resnet_trains_each_run_once_and_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    for name, value in (("EPOCHS", "1"), ("FRACTIONS", "0.1 1"), ("SEEDS", "2"), ("RUN", str(run))):
        monkeypatch.setenv(f"VIT_{name}", value)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    outputs = outputs_of("03_vit_against_resnet.ipynb")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < SECONDS
    said = "".join(output.get("text", "") for output in outputs)
    assert said.count("of the data, seed") == 2 * 2 * 2, "what is finished is not trained again"
    result = json.loads((run / "data_size.json").read_text())
    assert {recipe: len(points) for recipe, points in result["curves"].items()} == {"digits_vit": 2, "digits_resnet": 2}
    judged = json.loads((run / "comparison" / "comparison.json").read_text())
    counts = [judged["pairs"][0][key] for key in ("both", "only_first", "only_second", "neither")]
    assert f"both right {counts[0]}, both wrong {counts[3]}" in said
    assert sum(counts) == 359
    assert num_pictures(outputs) == 3


@pytest.mark.slow
def test_looking_inside_a_vit_draws_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    monkeypatch.setenv("VIT_EPOCHS", "2")
    monkeypatch.setenv("VIT_RUN", str(run))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    outputs = outputs_of("04_looking_inside_a_vit.ipynb")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < SECONDS
    said = "".join(output.get("text", "") for output in outputs)
    assert "uniform attention: 4.016 pixels" in said
    assert "rows 0.500 + columns 0.500 = 1.000" in said
    assert f"accuracy {json.loads((run / 'summary.json').read_text())['test.top1']:.2%}" in said
    assert num_pictures(outputs) == 16
