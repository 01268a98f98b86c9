"""Unbalanced classes: weights of the loss, and epochs that show every class equally often."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight

from vit.config import AugmentConfig, DataConfig
from vit.data.order import balanced_order
from vit.tasks.classification.config import ClassificationRun, ClassificationTrainConfig
from vit.tasks.classification.losses import class_weights, target_losses
from vit.tasks.multilabel.config import TableDataConfig

LABELS = torch.tensor([0] * 50 + [1] * 7 + [2] * 3)


def test_balanced_weights_are_scikit_learns() -> None:
    found = class_weights(ClassificationTrainConfig(class_weights="balanced"), LABELS, 3)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=LABELS.numpy())
    assert found is not None
    assert found.tolist() == pytest.approx(expected.tolist())
    assert float(found[LABELS].mean()) == pytest.approx(1)


def test_a_class_weight_multiplies_the_loss_of_its_images() -> None:
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
    targets = F.one_hot(labels, 3).float()
    weights = torch.tensor([1.0, 2.0, 5.0])
    plain = target_losses(logits, targets, ClassificationTrainConfig())
    assert torch.allclose(target_losses(logits, targets, ClassificationTrainConfig(), weights), plain * weights[labels])
    expected = F.cross_entropy(logits, labels, weights, label_smoothing=0.1, reduction="none")
    smoothed = target_losses(logits, targets, ClassificationTrainConfig(label_smoothing=0.1), weights)
    assert torch.allclose(smoothed, expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_class_weight_multiplies_binary_cross_entropy_too(smoothing: float) -> None:
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
    targets, weights = F.one_hot(labels, 3).float(), torch.tensor([1.0, 2.0, 5.0])
    config = ClassificationTrainConfig(loss="bce", label_smoothing=smoothing)
    plain = target_losses(logits, targets, config)
    assert torch.allclose(target_losses(logits, targets, config, weights), plain * weights[labels])


def test_a_list_of_weights_has_one_a_class() -> None:
    with pytest.raises(ValueError, match=r"train.class_weights: .* the data has 3 classes"):
        class_weights(ClassificationTrainConfig(class_weights=(1.0, 2.0)), LABELS, 3)


@pytest.mark.parametrize("length", [60, 61, 100])
def test_every_class_stands_equally_often_in_an_epoch(length: int) -> None:
    for epoch in range(3):
        order = balanced_order(5, epoch, LABELS, length)
        counts = torch.bincount(LABELS[order], minlength=3)
        assert len(order) == length
        assert int(counts.max() - counts.min()) <= 2


def test_every_image_of_a_class_comes_before_one_comes_again() -> None:
    order = torch.cat([balanced_order(5, epoch, LABELS, 30) for epoch in range(15)])
    for label, count in ((0, 50), (1, 7), (2, 3)):
        drawn = order[LABELS[order] == label]
        for part in drawn[: len(drawn) // count * count].split(count):
            assert len(part.unique()) == count


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    first = balanced_order(5, 1, LABELS, 60)
    assert torch.equal(first, balanced_order(5, 1, LABELS, 60))
    assert not torch.equal(first, balanced_order(5, 2, LABELS, 60))
    assert not torch.equal(first, balanced_order(6, 1, LABELS, 60))


@pytest.mark.parametrize(
    ("kind", "values", "field"),
    [
        (ClassificationTrainConfig, {"class_weights": (1.0, 0.0)}, "train.class_weights"),
        (TableDataConfig, {"sampling": "balanced"}, "data.sampling"),
        (
            ClassificationRun,
            {"data": DataConfig(sampling="balanced"), "train": ClassificationTrainConfig(class_weights="balanced")},
            "train.class_weights",
        ),
        (
            ClassificationRun,
            {"data": DataConfig(sampling="balanced"), "augment": AugmentConfig(repeats=2)},
            "augment.repeats",
        ),
    ],
)
def test_settings_without_effect_are_errors(kind: type, values: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: .* is not valid: ") as caught:
        kind(**values)
    assert str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize("words", [["--data.sampling", "balanced"], ["--train.class_weights", "balanced"]])
def test_a_run_takes_them_and_reports_recall(words: list[str], tmp_path: Path) -> None:
    from vit.cli import main

    settings = {
        "task": "classification",
        "model": {"name": "vit", "image_size": 8, "patch_size": 4, "width": 16, "depth": 1, "num_heads": 2},
        "data": {"name": "fake", "fake_images": 40, "fake_classes": 3, "batch_size": 8, "workers": 0},
        "train": {"epochs": 1, "precision": "fp32"},
    }
    config = tmp_path / "run.json"
    config.write_text(json.dumps(settings))
    run = tmp_path / "run"
    assert main(["train", "--config", str(config), "--output_dir", str(run), *words]) == 0
    summary = json.loads((run / "summary.json").read_text())
    recall = json.loads((run / "figures" / "confusion_matrix.json").read_text())["recall"]
    assert summary["test.balanced_accuracy"] == pytest.approx(np.mean(recall))
    assert "balanced accuracy" in (run / "README.md").read_text()
