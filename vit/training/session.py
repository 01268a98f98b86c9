"""A configuration opened as everything that the loop needs. Every check of a setting happens before training starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn
from torch.optim import Optimizer

from vit.config import RunConfig, TrainConfig, check
from vit.data.run_images import name_images, names_digest
from vit.engine import has_fast_bf16, keep_freed_memory, make_accelerator, precision_of
from vit.layers.block import Block
from vit.models import VisionTransformer
from vit.models.model import EncoderModel
from vit.stopwatch import Timer, untimed
from vit.tasks import TASKS
from vit.tasks.task import Report, Task
from vit.training.averaging import WeightAverage
from vit.training.interruption import StopSignals
from vit.training.optim import build_optimizers
from vit.training.progress import RunCounters
from vit.training.schedule import warmup_samples
from vit.training.trackers import tracker_options

MOST_PROGRAMS = 128
"""That torch keeps of a compiled model: of each size of images that grow, for whole groups and for the epoch's last."""


@dataclass
class Session:
    """One process's part of a run."""

    config: RunConfig
    run: Path
    accelerator: Accelerator
    task: Task
    model: nn.Module
    """Prepared: wrapped where there are several processes."""
    optimizers: list[Optimizer]
    average: WeightAverage | None
    progress: RunCounters = field(default_factory=RunCounters)
    stop_signals: StopSignals = field(default_factory=StopSignals)

    @property
    def unwrapped_model(self) -> nn.Module:
        return self.accelerator.unwrap_model(self.model)

    @property
    def is_main(self) -> bool:
        return bool(self.accelerator.is_main_process)

    @cached_property
    def names_of_images(self) -> str:
        """A hash of the names of the training and validation images, by which their list is checked; may be empty."""
        return "" if self.task.info.images is None else names_digest(name_images(*self.task.info.images))

    @property
    def precision(self) -> str:
        return precision_of(self.accelerator)

    @cached_property
    def report(self) -> Report:
        return TASKS[self.config.task].report(self.task)

    @property
    def goal(self) -> str:
        """The logged metric that chooses the best checkpoint: the average's, where there is one."""
        return f"{'' if self.average is None else 'ema.'}val.{self.task.info.metric}"

    @property
    def remedy(self) -> str:
        """Advice where a loss, a gradient or a prediction is not finite."""
        precision = "" if self.precision == "fp32" else ", or set train.precision to fp32"
        return f"Lower optim.lr{precision}"

    @property
    def total_steps(self) -> int:
        return self.config.train.epochs * self.task.train_loader.steps_per_epoch

    @property
    def total_samples(self) -> int:
        return self.config.train.epochs * self.task.train_loader.samples_per_epoch

    @property
    def how_to_continue(self) -> str:
        return f"continue with --resume {self.run}"

    def warmup_samples(self, epochs: int) -> float:
        """Where the rate has risen to `optim.lr`, in a run of `epochs`."""
        loader = self.task.train_loader
        return warmup_samples(loader.samples_per_epoch, loader.steps_per_epoch, epochs, self.config.optim)

    def agreed_stop_signal(self) -> int:
        """The signal that asked any process to stop, or 0; the same on every process, and every process calls it.

        A signal reaches processes at different moments, and they must stop at the same step.
        """
        if self.accelerator.num_processes == 1:
            return self.stop_signals.signal_number
        mine = torch.tensor([self.stop_signals.signal_number], device=self.accelerator.device)
        return int(self.accelerator.gather(mine).max())


def open_session(config: RunConfig, run: Path, *, compiles: bool = True, timer: Timer = untimed) -> Session:
    """Open the data, build the model and everything around it. ValueError for any setting that cannot be honoured.

    `compiles` False: for a session that takes no steps; the model is not compiled, and freed memory is not kept.
    """
    rule = "training computes in float64 too, which MPS lacks; use cpu"
    check(config.device != "mps", "device", "mps", rule)
    accelerator = make_accelerator(config.device, config.train.precision, **tracker_options(config, run))
    supported = accelerator.mixed_precision != "fp16" or config.optim.name != "muon"
    rule = "Accelerate's loss scaling supports one optimizer and optim.name 'muon' needs two; use bf16"
    check(supported, "train.precision", "fp16", rule)
    torch.manual_seed(config.seed)  # the model's first values
    task = TASKS[config.task].open(config, accelerator, timer)
    config = task.config
    _check_sharding(config, accelerator, task.model)
    _check_cuda_graphs(config, accelerator)
    if config.train.gradient_checkpointing:
        rule = "only the blocks of a VisionTransformer can be recomputed"
        _vision_transformer(task.model, "train.gradient_checkpointing", rule).gradient_checkpointing = True
    if config.train.compile_blocks:
        _check_blocks_alike(task.model)
    if compiles:
        compile_as_configured(task.model, config.train)
        if accelerator.device.type == "cpu":
            keep_freed_memory()
    optimizers = build_optimizers(task.model, config.optim, has_fast_bf16(accelerator.device.type))
    model, *optimizers = accelerator.prepare(task.model, *optimizers)
    decay = config.train.ema_decay
    return Session(
        config=config,
        run=run,
        accelerator=accelerator,
        task=task,
        model=model,
        optimizers=optimizers,
        average=None if decay is None else WeightAverage(accelerator.unwrap_model(model), decay),
    )


def _check_sharding(config: RunConfig, accelerator: Accelerator, model: nn.Module) -> None:
    """Refuse what torch cannot split over processes."""
    if accelerator.distributed_type != DistributedType.FSDP:
        return
    rule = "FSDP was tried with Vision Transformers only; launch without --use_fsdp"
    check(isinstance(model, VisionTransformer), "model.name", type(model).__name__, rule)
    rule = "torch's fused SGD does not take the weights that FSDP split; use adamw, or launch without --use_fsdp"
    check(config.optim.name != "sgd", "optim.name", config.optim.name, rule)
    rule = "a compiled model is not split by FSDP here; leave it out, or launch without --use_fsdp"
    check(not config.train.compile, "train.compile", True, rule)


def _check_cuda_graphs(config: RunConfig, accelerator: Accelerator) -> None:
    wanted, device = config.train.cuda_graphs, accelerator.device.type
    check(not wanted or device == "cuda", "train.cuda_graphs", wanted, f"only CUDA has them, this run is on {device}")
    rule = "graphs do not hold the exchange between processes; launch one, or leave it out"
    check(not wanted or accelerator.num_processes == 1, "train.cuda_graphs", wanted, rule)


def compile_as_configured(model: nn.Module, config: TrainConfig) -> None:
    """Have the model or its blocks compiled at their first call, anew for every size of images and of groups."""
    if config.compile:
        from torch._dynamo import config as dynamo  # the compiler takes a second to import

        # beyond torch's own limit, 8 in torch 2.14, images that have grown to another size are computed uncompiled
        dynamo.recompile_limit = max(dynamo.recompile_limit, MOST_PROGRAMS)
    if config.compile_blocks:
        for block in (module for module in model.modules() if isinstance(module, Block)):
            block.compile()
    elif config.compile:
        model.compile(mode="reduce-overhead" if config.cuda_graphs else None)


def _check_blocks_alike(model: nn.Module) -> None:
    """ValueError for a model without Transformer blocks, or whose blocks cannot share a program."""
    setting = "train.compile_blocks"
    config = _vision_transformer(model, setting, "only the blocks of a VisionTransformer are alike").config
    for name in ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate"):
        rate = getattr(config, name)
        rule = (
            f"with model.{name} {rate} each block draws its own random numbers and needs its own program; "
            f"set that to 0, or leave out {setting}"
        )
        check(rate == 0, setting, True, rule)


def _vision_transformer(model: nn.Module, setting: str, rule: str) -> VisionTransformer:
    """The model, or the encoder that is trained within it. ValueError where it is another."""
    encoder = model.encoder if isinstance(model, EncoderModel) else model
    check(isinstance(encoder, VisionTransformer), setting, True, f"{rule}, this is a {type(encoder).__name__}")
    assert isinstance(encoder, VisionTransformer)
    return encoder


def set_training_mode(model: nn.Module) -> None:
    """Training mode, in which a frozen BatchNorm keeps its statistics."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and not module.weight.requires_grad:
            module.eval()
