"""Every notebook runs from top to bottom, on a tiny set, in a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from PIL import Image

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


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


@pytest.mark.slow
def test_train_on_your_images_runs_and_leaves_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "images")
    monkeypatch.setenv("VIT_IMAGES", str(tmp_path / "images"))
    monkeypatch.setenv("VIT_EPOCHS", "2")
    monkeypatch.setenv("VIT_RUN", str(tmp_path / "run"))
    notebook = nbformat.read(NOTEBOOKS / "02_train_on_your_images.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": NOTEBOOKS}}).execute()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["test.n_seen"] == 24
    assert summary["dataset"] == "imagefolder"
    pictures = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in pictures) >= 3
