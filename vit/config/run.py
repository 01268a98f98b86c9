"""Settings of training, and of whole runs: all sections together, and the rules between them.

Each task has its own class of run, in the `config.py` of its folder in `vit/tasks/`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from vit.config.arguments import check_types
from vit.config.data import AugmentConfig, DataConfig
from vit.config.model import ModelConfig
from vit.config.rules import check, check_effect, check_finite, check_positive, check_rate, check_seed
from vit.config.sizes import MOST_STEPS, check_most

_MOST_LR = 1e9

OptimizerName = Literal["adamw", "sgd", "lamb", "muon"]
Tracker = Literal["tensorboard", "wandb", "mlflow"]


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    name: OptimizerName = "adamw"
    """The optimizer; `muon` takes the blocks' matrices and convolutions, AdamW the rest."""
    lr: float = 1e-3
    """Peak learning rate at `data.batch_size` images per step."""
    weight_decay: float = 0.05
    """Weight decay; not applied to norms, biases, positions and tokens."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the averages of gradients and of their squares: `adamw`, `lamb`, and the parameters that `muon` leaves
    to AdamW.
    """
    momentum: float = 0.9
    """Decay of the averaged gradients, `sgd` and `muon` only."""
    layer_decay: float = 1.0
    """Learning rate of each block relative to the next one (fine-tuning); 1: all the same."""
    schedule: Literal["cosine", "linear", "inverse_sqrt", "constant"] = "cosine"
    """Decay after the warm-up; `inverse_sqrt`: Vaswani et al. 2017, eq. 3."""
    warmup_epochs: float = 0.0
    """Epochs in which the learning rate rises linearly from 0 to its peak; may be fractional."""
    min_lr: float = 0.0
    """The learning rate at the end of the decay."""
    clip_norm: float | None = 1.0
    """Gradients whose norm over all parameters is larger are scaled to it; null: no clipping."""

    def __post_init__(self) -> None:
        check_types("optim", self)
        check_finite("optim", self)
        for name in ("lr", "clip_norm"):
            check_positive(f"optim.{name}", getattr(self, name))
        for name in ("weight_decay", "warmup_epochs", "min_lr"):
            check(getattr(self, name) >= 0, f"optim.{name}", getattr(self, name), "it must be at least 0")
        check(self.lr < _MOST_LR, "optim.lr", self.lr, f"it must be below {_MOST_LR:g}")
        check(self.min_lr <= self.lr, "optim.min_lr", self.min_lr, f"it must not exceed optim.lr ({self.lr})")
        for beta in (*self.betas, self.momentum):
            check_rate("optim.betas" if beta in self.betas else "optim.momentum", beta)
        check(0 < self.layer_decay <= 1, "optim.layer_decay", self.layer_decay, "it must be in (0, 1]")
        needs = {
            "momentum": (self.name in ("sgd", "muon"), "optim.name 'sgd' or 'muon'"),
            "betas": (self.name != "sgd", "optim.name 'adamw', 'lamb' or 'muon'"),
            "min_lr": (self.schedule in ("cosine", "linear"), "optim.schedule 'cosine' or 'linear'"),
        }
        check_effect("optim", self, needs)
        rule = "optim.schedule 'inverse_sqrt' falls from the end of the warm-up; set it above 0"
        has_peak = self.schedule != "inverse_sqrt" or self.warmup_epochs > 0
        check(has_peak, "optim.warmup_epochs", self.warmup_epochs, rule)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The `train:` section of every task; a task that has settings of its own extends it."""

    epochs: int = 10
    """Passes over the training set."""
    accumulation_steps: int = 1
    """Micro-batches that a step's batch is cut into, to save memory."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """`auto`: bf16 if the device computes it faster than fp32, else fp32."""
    compile: bool = False
    """Compile the model by `torch.compile`, which may take minutes at the start."""
    compile_blocks: bool = False
    """Compile a Vision Transformer's blocks alone. One program for all that are alike takes less time at the start; it
    needs `compile`, and no dropout or stochastic depth.
    """
    cuda_graphs: bool = False
    """Replay steps as CUDA graphs (torch's mode `reduce-overhead`), which saves small models the time to launch their
    kernels. One is recorded for each batch size; it needs `compile`, CUDA, one process and one micro-batch.
    """
    gradient_checkpointing: bool = False
    """Compute every block's activations again in the backward pass: less memory, a third more time."""
    ema_decay: float | None = None
    """Decay per step of the averaged weights, which are evaluated and kept besides the raw ones. None: no average."""
    evaluate_every_epochs: int = 1
    """Epochs from one validation to the next; the last epoch is always validated."""
    save_every_epochs: int = 1
    """Epochs from one checkpoint to the next. An epoch with a validation always has one, so this is for runs whose
    `evaluate_every_epochs` is larger than 1.
    """
    save_every_steps: int | None = None
    """Checkpoints within an epoch, in addition to the one at its end; null: none."""
    log_every_steps: int = 10
    """Steps from one line of `metrics.jsonl` to the next; the last step of an epoch without a line has one."""
    trackers: tuple[Tracker, ...] = ()
    """Experiment trackers that get each line of `metrics.jsonl` too, any of tensorboard, wandb and mlflow."""

    def __post_init__(self) -> None:
        check_types("train", self)
        check_finite("train", self)
        counts = (
            *("epochs", "accumulation_steps", "evaluate_every_epochs", "save_every_epochs"),
            *("save_every_steps", "log_every_steps"),
        )
        check_most("train", self, dict.fromkeys(counts, MOST_STEPS))
        for name in counts:
            check_positive(f"train.{name}", getattr(self, name))
        needed = (self.compile, "train.compile true")
        check_effect("train", self, {"compile_blocks": needed, "cuda_graphs": needed})
        rule = "every validation is saved, and each epoch has one; increase train.evaluate_every_epochs too"
        effective = self.save_every_epochs == 1 or self.evaluate_every_epochs > 1
        check(effective, "train.save_every_epochs", self.save_every_epochs, rule)
        rule = "CUDA graphs hold the whole model; leave out train.compile_blocks"
        check(not (self.cuda_graphs and self.compile_blocks), "train.cuda_graphs", self.cuda_graphs, rule)
        rule = "CUDA graphs cannot accumulate gradients of several micro-batches; set train.accumulation_steps to 1"
        check(not self.cuda_graphs or self.accumulation_steps == 1, "train.cuda_graphs", self.cuda_graphs, rule)
        check_rate("train.ema_decay", self.ema_decay)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of every training run; the class of each task adds its model, its data and what else it needs."""

    evaluation_settings: ClassVar[tuple[str, ...]]
    """Settings and sections that `vit eval` can override."""

    task: str
    """The kind of training: classification, multilabel, masked_autoencoder, contrastive, translation or regression."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    seed: int = 0
    """Fixes initial weights, order, augmentation and dropout."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where it is computed; `auto`: CUDA, else the CPU; `mps`: not for training."""
    output_dir: str | None = None
    """None: `runs/` and the configuration file's name."""

    def __post_init__(self) -> None:
        check_seed("seed", self.seed)
        check(self.output_dir is None or self.output_dir.strip() != "", "output_dir", "", "it must name a folder")
        check(
            self.optim.warmup_epochs <= self.train.epochs,
            "optim.warmup_epochs",
            self.optim.warmup_epochs,
            f"it must not exceed train.epochs ({self.train.epochs})",
        )

    def _check_batch_size(self, batch_size: int) -> None:
        steps = self.train.accumulation_steps
        rule = f"train.accumulation_steps ({steps}) must divide it"
        check(batch_size % steps == 0, "data.batch_size", batch_size, rule)


@dataclass(frozen=True, kw_only=True)
class ImageRun(RunConfig):
    """Settings of every run on images."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "images are read in 3 channels (RGB); for others, train a model of create_model() in a loop of your own"
        check(self.model.in_channels in (None, 3), "model.in_channels", self.model.in_channels, rule)
        self._check_batch_size(self.data.batch_size)
        micro_batch = self.data.batch_size // self.train.accumulation_steps
        group = self.augment.mix_group
        rule = f"a micro-batch ({micro_batch} images) must hold whole groups of augment.mix_group ({group}) images"
        fits = not self.augment.mixes or micro_batch % group == 0
        check(fits, "data.batch_size", self.data.batch_size, rule)
        once = self.data.sampling == "shuffled" or self.augment.repeats == 1
        rule = "data.sampling 'balanced' repeats images itself; set it to 1"
        check(once, "augment.repeats", self.augment.repeats, rule)
        growing, rule = self.augment.growing_epochs, f"it must be below train.epochs ({self.train.epochs})"
        check(growing < self.train.epochs, "augment.growing_epochs", growing, rule)
