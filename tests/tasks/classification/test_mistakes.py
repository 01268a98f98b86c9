"""The sheet of mistakes: what stands at its images, and what it says where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import pytest

from vit.config import DataConfig
from vit.data.images import open_test
from vit.evaluation.predictions import Predictions
from vit.tasks.classification.mistakes import draw_mistakes


def predictions_of(predicted: list[int], sureness: list[float]) -> Predictions:
    """Of the first digits of the test set, in its order."""
    split = open_test(DataConfig(name="digits"))
    logits = np.zeros((len(predicted), 10), dtype=np.float32)
    logits[np.arange(len(predicted)), predicted] = sureness
    count = len(predicted)
    return Predictions(np.arange(count), split.labels[:count].numpy(), logits, split.source.class_names, count, 0)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[matplotlib.figure.Figure]:
    drawn: list[matplotlib.figure.Figure] = []

    def keep(figure: matplotlib.figure.Figure, path: Path, numbers: dict[str, Any]) -> None:
        drawn.append(figure)
        path.with_suffix(".json").write_text(json.dumps(numbers))

    monkeypatch.setattr("vit.tasks.classification.mistakes.save_figure", keep)
    return drawn


def test_true_and_predicted_class_of_the_most_confident_of_every_class(
    figures: list[matplotlib.figure.Figure], tmp_path: Path
) -> None:
    source = open_test(DataConfig(name="digits")).source
    labels = source.labels[:6].tolist()
    predicted = [(label + 1) % 10 for label in labels[:4]] + labels[4:]
    draw_mistakes(tmp_path / "m.png", predictions_of(predicted, [2, 5, 3, 4, 1, 9]), source)
    (figure,) = figures
    assert [axes.get_title() for axes in figure.axes] == [str(labels[row]) for row in (1, 3, 2, 0, 5, 4)]
    assert figure.axes[0].texts[0].get_text() == f"{predicted[1]}\n94.3%"
    assert figure.axes[4].texts[0].get_text() == "99.9%"
    first, second = json.loads((tmp_path / "m.json").read_text())["images"].items()
    assert first[0].startswith("the most confident of 4 mistakes in 6 images")
    assert [row["file"] for row in second[1]] == [source.name(5), source.name(4)]
    assert first[1][0] == {
        "file": source.name(1),
        "true": str(labels[1]),
        "predicted": str(predicted[1]),
        "probability": pytest.approx(np.exp(5) / (np.exp(5) + 9), abs=1e-6),
    }


def test_a_model_without_mistakes(figures: list[matplotlib.figure.Figure], tmp_path: Path) -> None:
    source = open_test(DataConfig(name="digits")).source
    draw_mistakes(tmp_path / "m.png", predictions_of(source.labels[:3].tolist(), [1, 2, 3]), source)
    assert figures[0].texts[0].get_text().endswith("prediction below: none")
    assert len(figures[0].axes) == 3
