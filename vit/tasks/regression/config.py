"""The settings of a kernel-regression run: the curve's points, the kernel's first widths, and the rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from vit.config.rules import check, check_finite, check_positive, check_seed
from vit.config.run import OptimConfig, RunConfig, TrainConfig
from vit.config.sizes import MOST_SAMPLES, MOST_STEPS, check_most


@dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """The `model:` section: Nadaraya–Watson regression with one learned width a key."""

    initial_width: float = 1.0
    """w of every key before training, and of the fixed kernel that the learned one is compared with."""

    def __post_init__(self) -> None:
        check_finite("model", self)
        check_positive("model.initial_width", self.initial_width)


@dataclass(frozen=True, kw_only=True)
class CurveConfig:
    """The `data:` section: points of the curve in `vit/tasks/regression/curve.py`."""

    train_points: int = 6000
    """Drawn at uniform places, with noise; each is a key too. A step uses all of them."""
    val_points: int = 1000
    """Drawn as the training points are; they choose the checkpoint."""
    test_points: int = 6000
    """Evenly spaced, and without noise: the curve itself."""
    noise: float = 0.5
    """Standard deviation."""
    points_seed: int = 0
    """Fixes all points; the training seed does not touch them."""
    passes: int = 1
    """Steps per epoch. Take many where a step is faster than the checkpoint after an epoch."""
    eval_batch_size: int = 1000
    """Queries evaluated at once: their weights for all keys are in memory."""

    def __post_init__(self) -> None:
        check_finite("data", self)
        points = ("train_points", "val_points", "test_points")
        check_most("data", self, dict.fromkeys(points, MOST_SAMPLES) | {"passes": MOST_STEPS})
        check_seed("data.points_seed", self.points_seed)
        for name in ("val_points", "passes", "eval_batch_size"):
            check_positive(f"data.{name}", getattr(self, name))
        rule = "it must be at least 2, so that each point has another one to attend to"
        check(self.train_points >= 2, "data.train_points", self.train_points, rule)
        check(
            self.test_points >= 2, "data.test_points", self.test_points, "it must be at least 2: the curve's two ends"
        )
        check(self.noise >= 0, "data.noise", self.noise, "it must be at least 0")


@dataclass(frozen=True, kw_only=True)
class RegressionRun(RunConfig):
    """Training the widths of a kernel regression."""

    evaluation_settings: ClassVar = ("data.test_points", "data.eval_batch_size", "device")

    task: Literal["regression"] = "regression"
    model: KernelConfig = field(default_factory=KernelConfig)
    data: CurveConfig = field(default_factory=CurveConfig)
    train: TrainConfig = field(default_factory=lambda: TrainConfig(precision="fp32"))
    """By default in float32: bfloat16 would round the estimates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        steps, points = self.train.accumulation_steps, self.data.train_points
        decay, rule = self.optim.weight_decay, "it has no effect on the widths, which are not decayed"
        check(decay in (0, OptimConfig.weight_decay), "optim.weight_decay", decay, rule)
        rule = f"it must not exceed data.train_points ({points}), which it divides"
        check(steps <= points, "train.accumulation_steps", steps, rule)


RUN = RegressionRun
