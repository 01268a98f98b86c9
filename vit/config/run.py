"""How to train, and a whole run: every section together, and the rules between sections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from vit.config.data import AugmentConfig, DataConfig
from vit.config.model import ModelConfig
from vit.config.rules import check, check_effect, check_finite, check_positive, check_rate, check_seed


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    name: Literal["adamw", "sgd", "lamb", "muon"] = "adamw"
    lr: float = 1e-3
    """Peak learning rate at `data.batch_size` images a step."""
    weight_decay: float = 0.05
    """Not applied to norms, biases, positions and tokens."""
    betas: tuple[float, float] = (0.9, 0.999)
    """`adamw`, `lamb`, and what `muon` leaves to AdamW."""
    momentum: float = 0.9
    """`sgd` and `muon` only."""
    layer_decay: float = 1.0
    """Each block's rate is this times the next one's (fine-tuning); 1: all the same."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_epochs: float = 0.0
    min_lr: float = 0.0
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        check_finite("optim", self)
        for name in ("lr", "clip_norm"):
            check_positive(f"optim.{name}", getattr(self, name))
        for name in ("weight_decay", "warmup_epochs", "min_lr"):
            check(getattr(self, name) >= 0, f"optim.{name}", getattr(self, name), "it must be at least 0")
        check(self.min_lr <= self.lr, "optim.min_lr", self.min_lr, f"it must not exceed optim.lr ({self.lr})")
        for beta in (*self.betas, self.momentum):
            check_rate("optim.betas" if beta in self.betas else "optim.momentum", beta)
        check(0 < self.layer_decay <= 1, "optim.layer_decay", self.layer_decay, "it must be in (0, 1]")
        needs = {
            "momentum": (self.name in ("sgd", "muon"), "optim.name 'sgd' or 'muon'"),
            "betas": (self.name != "sgd", "optim.name 'adamw', 'lamb' or 'muon'"),
            "min_lr": (self.schedule != "constant", "optim.schedule 'cosine' or 'linear'"),
        }
        check_effect("optim", self, needs)


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """Learning from a teacher's predictions (DeiT), through the distillation token where the model has one."""

    teacher: str | None = None
    """A run folder or `timm:NAME`."""
    kind: Literal["hard", "soft"] = "hard"
    weight: float = 0.5
    """Part of the loss that comes from the teacher."""
    temperature: float = 3.0
    """`soft` only."""

    def __post_init__(self) -> None:
        check_finite("distill", self)
        check(0 < self.weight <= 1, "distill.weight", self.weight, "it must be in (0, 1]")
        check_positive("distill.temperature", self.temperature)
        has_teacher = self.teacher is not None
        needs = {
            "kind": (has_teacher, "distill.teacher"),
            "weight": (has_teacher, "distill.teacher"),
            "temperature": (has_teacher and self.kind == "soft", "distill.teacher and distill.kind 'soft'"),
        }
        check_effect("distill", self, needs)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    epochs: int = 10
    accumulation_steps: int = 1
    """Micro-batches that one optimizer step is divided into."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """`auto`: bf16 where the device computes it faster than fp32, else fp32."""
    compile: bool = False
    gradient_checkpointing: bool = False
    loss: Literal["cross_entropy", "bce"] = "cross_entropy"
    label_smoothing: float = 0.0
    ema_decay: float | None = None
    """Decay of the averaged weights a step; they are evaluated and kept beside the raw ones. None: no average."""
    evaluate_every_epochs: int = 1
    save_every_steps: int | None = None
    """Besides the end of every epoch."""
    log_every_steps: int = 10
    tensorboard: bool = False

    def __post_init__(self) -> None:
        check_finite("train", self)
        for name in (
            "epochs",
            "accumulation_steps",
            "evaluate_every_epochs",
            "save_every_steps",
            "log_every_steps",
        ):
            check_positive(f"train.{name}", getattr(self, name))
        check_rate("train.label_smoothing", self.label_smoothing)
        check_rate("train.ema_decay", self.ema_decay)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole training run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    seed: int = 0
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    output_dir: str | None = None
    """None: `runs/` and the configuration file's name."""

    def __post_init__(self) -> None:
        steps = self.train.accumulation_steps
        check(
            self.data.batch_size % steps == 0,
            "data.batch_size",
            self.data.batch_size,
            f"train.accumulation_steps ({steps}) must divide it",
        )
        check_seed("seed", self.seed)
        if self.augment.mixes:
            check(
                self.data.batch_size // steps % self.augment.mix_group == 0,
                "data.batch_size",
                self.data.batch_size,
                f"a micro-batch ({self.data.batch_size // steps} images) must hold whole groups of "
                f"augment.mix_group ({self.augment.mix_group}) images",
            )
        check(
            self.optim.warmup_epochs <= self.train.epochs,
            "optim.warmup_epochs",
            self.optim.warmup_epochs,
            f"it must not exceed train.epochs ({self.train.epochs})",
        )
