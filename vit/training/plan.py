"""What a run will do and cost, said before anything is trained: steps, rates, sizes, memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.config import RunConfig
from vit.data.images import open_training
from vit.data.loading import TrainLoader
from vit.engine import make_accelerator
from vit.evaluation.cost import count_parameters, multiply_adds, training_memory
from vit.figures.schedule import schedule
from vit.figures.style import save_figure
from vit.models import build_model, resolve
from vit.training.schedule import learning_rate

_MARKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Plan:
    """The numbers of a run that has not begun; rates are at evenly spaced points of it."""

    rows: dict[str, str]
    images_seen: list[int]
    rates: list[float]

    def text(self) -> str:
        width = max(len(name) for name in self.rows)
        lines = [f"{name:{width}}  {value}" for name, value in self.rows.items()]
        top = max(self.rates) or 1.0
        marks = "".join(_MARKS[round(rate / top * (len(_MARKS) - 1))] for rate in self.rates[:: len(self.rates) // 60])
        return "\n".join([*lines, f"{'learning rate':{width}}  {marks}"])


def make_plan(config: RunConfig) -> Plan:
    """Opens the data (its size decides the steps) and builds the model without weights. ValueError as in training."""
    accelerator = make_accelerator(config.device, config.train.precision)
    train, val = open_training(config.data)
    num_classes = len(train.source.class_names)
    architecture = _architecture(config, num_classes)
    model = build_model(architecture)
    loader = TrainLoader(
        train,
        config.data,
        config.augment,
        image_size=architecture.image_size,
        seed=config.seed,
        accumulation_steps=config.train.accumulation_steps,
        world_size=accelerator.num_processes,
    )
    total = config.train.epochs * loader.images_per_epoch
    points = [round(total * index / 599) for index in range(600)]
    rates = [learning_rate(seen, total, loader.images_per_epoch, config.optim) for seen in points]
    memory = training_memory(
        model,
        architecture.image_size,
        batch_size=config.data.batch_size // config.train.accumulation_steps // accelerator.num_processes,
        optimizer=config.optim.name,
        precision={"no": "fp32"}.get(accelerator.mixed_precision, str(accelerator.mixed_precision)),
        ema=config.train.ema_decay is not None,
        gradient_checkpointing=config.train.gradient_checkpointing,
        device_type=accelerator.device.type,
    )
    macs = multiply_adds(model, architecture.image_size)
    rows = {
        "model": f"{config.model.name or config.model.pretrained}, "
        f"image {architecture.image_size}, {num_classes} classes",
        "parameters": f"{count_parameters(model):,}",
        "multiply-adds an image": f"{macs / 1e9:.4f} G forward, attention's products included",
        "images": f"{len(train):,} to train on, {len(val):,} to validate",
        "steps": f"{loader.steps_per_epoch * config.train.epochs:,} of {config.data.batch_size} images "
        f"({config.train.epochs} epochs of {loader.steps_per_epoch})",
        "warm-up": f"{round(config.optim.warmup_epochs * loader.steps_per_epoch):,} steps",
        "peak rate": f"{config.optim.lr:g}, {config.optim.schedule} to {config.optim.min_lr:g}",
        "training arithmetic": f"{6 * macs * total / 1e15:.4g} PFLOP "
        "(forward and backward, 2 operations a multiply-add)",
        "device": f"{accelerator.device.type}, {accelerator.num_processes} process(es), {accelerator.mixed_precision}",
        "memory": _memory(memory),
    }
    return Plan(rows, points, rates)


def _architecture(config: RunConfig, num_classes: int) -> Any:
    if config.model.pretrained is None or config.model.name is not None:
        return resolve(config.model, num_classes)
    from vit.hub import load_model

    return load_model(config.model, num_classes).model.config


def _memory(parts: dict[str, int]) -> str:
    total = sum(parts.values())
    shown = ", ".join(f"{name} {size / 2**20:.0f}" for name, size in parts.items())
    return f"about {total / 2**20:.0f} MiB a process ({shown})"


def draw_plan(plan: Plan, path: Path) -> None:
    """The learning rate's curve as a PNG, its numbers beside it."""
    numbers = {
        "images_seen": plan.images_seen,
        "lr": plan.rates,
        "conventions": "rate of the step after images_seen images",
    }
    save_figure(schedule(plan.images_seen, plan.rates), path, numbers)
