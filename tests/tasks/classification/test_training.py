"""Losses against sums by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.training.tiny import tiny
from vit.config import Preprocessing, ViTConfig
from vit.data.loading import TrainBatch
from vit.engine import make_accelerator
from vit.hub import open_model
from vit.models import build_model
from vit.tasks.classification.config import ClassificationTrainConfig, DistillConfig
from vit.tasks.classification.losses import distillation_losses, target_losses
from vit.tasks.classification.training import Classification
from vit.tasks.image_weights import check_normalization
from vit.tasks.images import common_patch
from vit.training.loop import train

LOGITS = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, -1.0]])
TARGETS = torch.tensor([[0.0, 1.0, 0.0], [0.75, 0.0, 0.25]])


def log_softmax(row: list[float]) -> list[float]:
    total = math.log(sum(math.exp(value) for value in row))
    return [value - total for value in row]


def cross_entropy(targets: list[list[float]]) -> list[float]:
    rows = [log_softmax(row) for row in LOGITS.tolist()]
    return [-sum(t * p for t, p in zip(target, row, strict=True)) for target, row in zip(targets, rows, strict=True)]


def test_cross_entropy_takes_mixed_targets() -> None:
    losses = target_losses(LOGITS, TARGETS, ClassificationTrainConfig())
    assert losses.tolist() == pytest.approx(cross_entropy(TARGETS.tolist()), rel=1e-5)


def test_label_smoothing_spreads_over_all_classes() -> None:
    third = 0.3 / 3
    smoothed = [[third, 0.7 + third, third], [0.7 * 0.75 + third, third, 0.7 * 0.25 + third]]
    losses = target_losses(LOGITS, TARGETS, ClassificationTrainConfig(label_smoothing=0.3))
    assert losses.tolist() == pytest.approx(cross_entropy(smoothed), rel=1e-5)
    labels = torch.tensor([1, 0])
    one_hot = F.one_hot(labels, 3).float()
    expected = F.cross_entropy(LOGITS, labels, label_smoothing=0.3, reduction="none")
    torch.testing.assert_close(target_losses(LOGITS, one_hot, ClassificationTrainConfig(label_smoothing=0.3)), expected)


def test_binary_cross_entropy_is_the_mean_over_classes() -> None:
    def one(logit: float, target: float) -> float:
        p = 1 / (1 + math.exp(-logit))
        return -(target * math.log(p) + (1 - target) * math.log(1 - p))

    expected = [
        sum(one(logit, target) for logit, target in zip(row, targets, strict=True)) / 3
        for row, targets in zip(LOGITS.tolist(), TARGETS.tolist(), strict=True)
    ]
    assert target_losses(LOGITS, TARGETS, ClassificationTrainConfig(loss="bce")).tolist() == pytest.approx(
        expected, rel=1e-5
    )


def test_losses_are_float32_whatever_the_logits() -> None:
    assert target_losses(LOGITS.bfloat16(), TARGETS, ClassificationTrainConfig()).dtype == torch.float32


class Says(nn.Module):
    """Answers the same logits to every image."""

    def __init__(self, *rows: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(rows))

    def forward(self, images: Tensor, **_: object) -> Tensor:
        return self.logits.expand(len(images), *self.logits.shape[1:])


def test_a_hard_teacher_gives_its_decision() -> None:
    losses = distillation_losses(LOGITS, Says([1.0, 5.0, 2.0]), torch.zeros(2, 3, 8, 8), DistillConfig(teacher="T"))
    assert losses.tolist() == pytest.approx([-log_softmax(row)[1] for row in LOGITS.tolist()], rel=1e-5)


def test_a_soft_teacher_gives_a_divergence_at_a_temperature() -> None:
    answer = [1.0, 5.0, 2.0]
    config = DistillConfig(teacher="T", kind="soft", temperature=2.0)
    theirs = log_softmax([value / 2 for value in answer])
    expected = []
    for row in LOGITS.tolist():
        ours = log_softmax([value / 2 for value in row])
        expected.append(4 * sum(math.exp(t) * (t - o) for t, o in zip(theirs, ours, strict=True)))
    losses = distillation_losses(LOGITS, Says(answer), torch.zeros(2, 3, 8, 8), config)
    assert losses.tolist() == pytest.approx(expected, rel=1e-4)


def batch_of(*labels: int) -> TrainBatch:
    count = len(labels)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=generator)
    places = torch.arange(count)
    return TrainBatch(images, torch.tensor(labels), places, places, torch.ones(count), torch.ones(count))


def losses_of(task: Classification, model: nn.Module, batch: TrainBatch, epoch: int = 0) -> tuple[Tensor, Tensor]:
    (augmented,) = task.train_loader.augment_together([batch], "cpu", epoch=epoch)
    return task.losses(model, augmented, epoch)


def task_with(distill: DistillConfig | None = None, **model: object) -> Classification:
    """With a teacher that is sure of class 0, where `distill` is given."""
    task = Classification(tiny(model=model), make_accelerator("cpu", "fp32"))
    if distill is not None:
        task.teacher, task.config = Says([9.0, 0.0, 0.0]), replace(task.config, distill=distill)
    return task


def test_a_batch_becomes_losses_and_correctness() -> None:
    losses, correct = losses_of(task_with(), Says([0.0, 1.0, 2.0]), batch_of(2, 1, 2))
    expected = [-log_softmax([0.0, 1.0, 2.0])[label] for label in (2, 1, 2)]
    assert losses.tolist() == pytest.approx(expected, rel=1e-5)
    assert correct.tolist() == [True, False, True]


class Sizes(nn.Module):
    """Remembers the size of the images it is shown."""

    seen: tuple[int, ...] = ()

    def forward(self, images: Tensor, **_: object) -> Tensor:
        self.seen = tuple(images.shape[2:])
        return torch.zeros(len(images), 3)


def test_the_images_grow_to_the_models_size() -> None:
    grows = {"first_image_size": 4, "growing_epochs": 2}
    task = Classification(tiny(augment=grows, train={"epochs": 3}), make_accelerator("cpu", "fp32"))
    model, seen = Sizes(), []
    for epoch in range(4):
        losses_of(task, model, batch_of(0, 1), epoch)
        seen.append(model.seen)
    assert seen == [(4, 4), (4, 4), (8, 8), (8, 8)]
    assert all(losses_of(task, task.model, batch_of(0, 1), epoch)[0].isfinite().all() for epoch in (0, 2))


def test_images_smaller_than_a_patch_are_refused() -> None:
    grows = {"first_image_size": 3, "growing_epochs": 2}
    with pytest.raises(ValueError, match=r"^augment\.first_image_size: 3 is not valid: .*\(4\)"):
        Classification(tiny(augment=grows, train={"epochs": 3}), make_accelerator("cpu", "fp32"))


def test_growing_images_fit_the_teacher_too() -> None:
    patches = [build_model(ViTConfig(image_size=(48, 48), patch_size=(side, side))) for side in (4, 6)]
    assert common_patch(*patches, Says([1.0])) == (12, 12)
    assert common_patch(Says([1.0])) == (1, 1)


def test_a_teacher_of_one_size_does_not_take_growing_images(monkeypatch: pytest.MonkeyPatch) -> None:
    class OneSize(Says):
        def forward(self, images: Tensor, **options: object) -> Tensor:
            assert images.shape[2:] == (8, 8), f"Input height ({images.shape[2]}) doesn't match model (8)."
            return super().forward(images, **options)

    monkeypatch.setattr(Classification, "load_teacher", lambda _: OneSize([0.0, 1.0, 2.0]))
    distill, accelerator = {"teacher": "T"}, make_accelerator("cpu", "fp32")
    Classification(tiny(distill=distill), accelerator)
    grows = {"first_image_size": 4, "growing_epochs": 2}
    with pytest.raises(ValueError, match=r"^distill\.teacher: 'T' .* images of 4×4 \(Input height \(4\) doesn't match"):
        Classification(tiny(distill=distill, augment=grows, train={"epochs": 3}), accelerator)


@pytest.mark.parametrize(
    ("taken", "line"),
    [
        ({4, 12}, r"images of 8×8 \(no size of mine.*\); leave out augment\.first_image_size"),
        ({4, 8}, r"images of 12×12 \(no size of mine.*\); take another one"),
    ],
)
def test_a_teacher_is_tried_at_every_size(taken: set[int], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Takes(Says):
        def forward(self, images: Tensor, **options: object) -> Tensor:
            assert images.shape[2] in taken, "no size of mine"
            return super().forward(images, **options)

    monkeypatch.setattr(Classification, "load_teacher", lambda _: Takes([0.0, 1.0, 2.0]))
    grows = {"first_image_size": 4, "growing_epochs": 2}
    config = tiny(distill={"teacher": "T"}, augment=grows, model={"image_size": 12}, train={"epochs": 3})
    with pytest.raises(ValueError, match=rf"^distill\.teacher: 'T' is not valid: it does not take {line}"):
        Classification(config, make_accelerator("cpu", "fp32"))


def test_the_teachers_part_is_its_weight() -> None:
    distill = DistillConfig(teacher="T", weight=0.25)
    losses, _ = losses_of(task_with(distill), Says([0.0, 1.0, 2.0]), batch_of(2))
    rows = log_softmax([0.0, 1.0, 2.0])
    assert losses.tolist() == pytest.approx([-0.75 * rows[2] - 0.25 * rows[0]], rel=1e-5)


def test_the_distillation_head_listens_to_the_teacher_only() -> None:
    student = Says([0.0, 1.0, 2.0])
    student.logits = nn.Parameter(torch.tensor([[[0.0, 1.0, 2.0], [2.0, 0.0, 4.0]]]))  # 1 2 k
    distill = DistillConfig(teacher="T", weight=0.25)
    losses, correct = losses_of(task_with(distill, distillation_token=True), student, batch_of(2))
    expected = -0.75 * log_softmax([0.0, 1.0, 2.0])[2] - 0.25 * log_softmax([2.0, 0.0, 4.0])[0]
    assert losses.tolist() == pytest.approx([expected], rel=1e-5)
    assert correct.tolist() == [True]


def test_no_gradient_reaches_the_teacher() -> None:
    task = task_with(DistillConfig(teacher="T", kind="soft"))
    student = Says([0.0, 1.0, 2.0])
    losses_of(task, student, batch_of(2))[0].sum().backward()
    assert task.teacher is not None
    assert task.teacher.logits.grad is None
    assert student.logits.grad is not None


def test_the_models_randomness_is_the_places() -> None:
    """Dropout and stochastic depth are the same for any division of a batch, and differ between epochs."""
    rates = ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate", "patch_dropout_rate")
    task, batch = task_with(None, **dict.fromkeys(rates, 0.25)), batch_of(0, 1, 2, 0, 1)
    model = task.model.train()
    whole, _ = losses_of(task, model, batch)
    halves = [TrainBatch(*(tensor[rows] for tensor in vars(batch).values())) for rows in (slice(0, 2), slice(2, 5))]
    parts = torch.cat([losses_of(task, model, half)[0] for half in halves])
    torch.testing.assert_close(parts, whole)
    assert not torch.allclose(losses_of(task, model, batch, 1)[0], whole)


def test_a_teacher_that_does_not_take_the_students_images_is_refused_before_training(tmp_path: Path) -> None:
    """It has patches of 4 pixels, and the student images of 10."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
        train(tiny(train={"epochs": 1}), tmp_path / "teacher")
    student = tiny(model={"image_size": 10, "patch_size": 5}, distill=DistillConfig(teacher=str(tmp_path / "teacher")))
    with pytest.raises(
        ValueError, match=r"^distill\.teacher: .* does not take the student's images: model\.image_size: "
    ):
        Classification(student, make_accelerator("cpu", "fp32"))


def test_a_teacher_of_blue_first_images_is_refused() -> None:
    ours = Preprocessing(image_size=(8, 8))
    loaded = replace(
        open_model("vit_tiny_patch16_32", num_classes=3), stated_preprocessing=replace(ours, channel_order="bgr")
    )
    with pytest.raises(ValueError, match=r"^T: it takes bgr images, and training has rgb"):
        check_normalization(ours, loaded, "T")
