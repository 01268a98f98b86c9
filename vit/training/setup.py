"""From a configuration to everything the loop needs. What can refuse a setting does so before training starts."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, is_tensorboard_available
from torch import nn
from torch.optim import Optimizer

from vit.config import ClassificationRun, RegressionRun, RunConfig, TrainConfig, TranslationRun, check
from vit.engine import has_fast_bf16, make_accelerator
from vit.models import VisionTransformer
from vit.training.averaging import WeightAverage
from vit.training.optim import build_optimizers
from vit.training.tasks.classification import Classification
from vit.training.tasks.kernel_regression import KernelRegression
from vit.training.tasks.task import Task
from vit.training.tasks.translation import Translation

log = logging.getLogger(__name__)


@dataclass
class Session:
    """One process's part of a run."""

    config: RunConfig
    run: Path
    accelerator: Accelerator
    task: Task
    model: nn.Module
    """As prepared: wrapped where there are several processes."""
    optimizers: list[Optimizer]
    average: WeightAverage | None

    @property
    def bare_model(self) -> nn.Module:
        return self.accelerator.unwrap_model(self.model)

    @property
    def is_main(self) -> bool:
        return bool(self.accelerator.is_main_process)

    @property
    def precision(self) -> str:
        return {"no": "fp32"}.get(self.accelerator.mixed_precision, str(self.accelerator.mixed_precision))

    @property
    def total_steps(self) -> int:
        return self.config.train.epochs * self.task.train_loader.steps_per_epoch

    @property
    def total_samples(self) -> int:
        return self.config.train.epochs * self.task.train_loader.samples_per_epoch


def prepare(config: RunConfig, run: Path, *, compiles: bool = True) -> Session:
    """Open the data, build the model and everything around it. ValueError for any setting that cannot be honoured.

    `compiles` False: for a session that only looks, the model is not compiled.
    """
    accelerator = make_accelerator(config.device, config.train.precision, **_trackers(config, run))
    _check_precision(config, accelerator)
    task = _open_task(config, accelerator)
    _check_sharding(config, accelerator, task.model)
    _check_cuda_graphs(config, accelerator)
    _set_switches(task.model, config)
    if compiles:
        compile_as_configured(task.model, config.train)
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


def _open_task(config: RunConfig, accelerator: Accelerator) -> Task:
    torch.manual_seed(config.seed)  # the model's first values
    match config:
        case ClassificationRun():
            return Classification(config, accelerator)
        case TranslationRun():
            return Translation(config, accelerator)
        case RegressionRun():
            return KernelRegression(config, accelerator)
    raise AssertionError(f"no task for {type(config).__name__}")


def _trackers(config: RunConfig, run: Path) -> dict[str, object]:
    if not config.train.tensorboard:
        return {}
    rule = "tensorboard is not installed, nothing would be written; install the extra 'tensorboard'"
    check(is_tensorboard_available(), "train.tensorboard", True, rule)
    return {"log_with": "tensorboard", "project_dir": str(run)}


def _check_precision(config: RunConfig, accelerator: Accelerator) -> None:
    check(
        not (accelerator.mixed_precision == "fp16" and config.optim.name == "muon"),
        "train.precision",
        "fp16",
        "Accelerate's loss scaling supports one optimizer and optim.name 'muon' needs two; use bf16",
    )


def _check_sharding(config: RunConfig, accelerator: Accelerator, model: nn.Module) -> None:
    """What torch cannot split over processes."""
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


def _set_switches(model: nn.Module, config: RunConfig) -> None:
    if config.train.gradient_checkpointing:
        rule = f"only the blocks of a VisionTransformer can be recomputed, this is a {type(model).__name__}"
        check(isinstance(model, VisionTransformer), "train.gradient_checkpointing", True, rule)
        model.gradient_checkpointing = True  # type: ignore[assignment]


def compile_as_configured(model: nn.Module, config: TrainConfig) -> None:
    if config.compile:
        model.compile(mode="reduce-overhead" if config.cuda_graphs else None)


def set_training_mode(model: nn.Module) -> None:
    """Training mode, in which a frozen BatchNorm keeps its statistics."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and not module.weight.requires_grad:
            module.eval()
