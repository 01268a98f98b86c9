"""The settings of an image classifier's training, and the rules between its sections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from vit.config.rules import check, check_effect, check_finite, check_positive, check_rate
from vit.config.run import ImageRun, TrainConfig


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """Learning from a teacher: from its predictions (DeiT), through the distillation token where the model has one, or
    from its feature maps.
    """

    teacher: str | None = None
    """A run folder, or any other source of a model."""
    kind: Literal["hard", "soft", "patches"] = "hard"
    """How it teaches. `hard`: the teacher's class is the label; `soft`: its probabilities are; `patches`: patches are
    to be as alike as the teacher's feature maps are there, in a ViT's blocks.
    """
    weight: float = 0.5
    """Fraction of the loss that comes from the teacher."""
    temperature: float = 3.0
    """Logits of both are divided by it, `soft` only."""

    def __post_init__(self) -> None:
        check_finite("distill", self)
        check(0 < self.weight <= 1, "distill.weight", self.weight, "it must be in (0, 1]")
        check_positive("distill.temperature", self.temperature)
        rule = "with distill.kind 'patches' the head learns from the labels alone; use less than 1"
        check(self.kind != "patches" or self.weight < 1, "distill.weight", self.weight, rule)
        has_teacher = self.teacher is not None
        needs = {
            "kind": (has_teacher, "distill.teacher"),
            "weight": (has_teacher, "distill.teacher"),
            "temperature": (has_teacher and self.kind == "soft", "distill.teacher and distill.kind 'soft'"),
        }
        check_effect("distill", self, needs)


@dataclass(frozen=True, kw_only=True)
class ClassificationTrainConfig(TrainConfig):
    """The `train:` section of an image classifier."""

    loss: Literal["cross_entropy", "bce"] = "cross_entropy"
    """`cross_entropy` over the classes, or `bce`: binary cross-entropy of each class by itself (DeiT III)."""
    label_smoothing: float = 0.0
    """Fraction of a label that is spread evenly over all classes."""
    class_weights: Literal["none", "balanced"] | tuple[float, ...] = "none"
    """Factor of an image's loss, by its class. `balanced`: images / (classes × images of the class), with mean 1 over
    the training images; or a list with a number for each class.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rate("train.label_smoothing", self.label_smoothing)
        positive = isinstance(self.class_weights, str) or (self.class_weights and min(self.class_weights) > 0)
        check(bool(positive), "train.class_weights", self.class_weights, "every weight must be above 0")


@dataclass(frozen=True, kw_only=True)
class ClassificationRun(ImageRun):
    """Training an image classifier."""

    evaluation_settings: ClassVar = (
        *("data.name", "data.root", "data.download", "data.test_folder", "data.test_fraction", "data.val_fraction"),
        *("data.split_seed", "data.eval_batch_size", "data.workers", "data.cache_gib", "data.on_broken_image"),
        *("data.crop_fraction", "data.squash", "data.interpolation", "data.antialias", "data.mean", "data.std"),
        *("data.fake_images", "data.fake_classes", "device", "train.precision"),
    )

    task: Literal["classification"] = "classification"
    train: ClassificationTrainConfig = field(default_factory=ClassificationTrainConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        both = self.data.sampling == "balanced" and self.train.class_weights == "balanced"
        rule = "data.sampling 'balanced' already shows every class equally often; leave one of them out"
        check(not both, "train.class_weights", self.train.class_weights, rule)
        distill = self.distill
        if distill.teacher is not None and distill.weight == 1:
            rule = "distill.weight 1 leaves nothing to the labels; leave it out"
            for name in ("loss", "label_smoothing", "class_weights"):
                value = getattr(self.train, name)
                check(value == getattr(ClassificationTrainConfig, name), f"train.{name}", value, rule)


RUN = ClassificationRun
