"""What a run will do and cost, said before anything is trained: steps, rates, sizes, memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from vit.config import RunConfig
from vit.evaluation.cost import count_parameters, multiply_adds, training_memory
from vit.figures.schedule import schedule
from vit.figures.style import save_figure
from vit.training.schedule import learning_rate
from vit.training.setup import Session, prepare

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
    """Does all that training does before its first step (opens the data, loads model and weights), and no step.

    So ValueError is raised for every setting that training would refuse.
    """
    session = prepare(replace(config, train=replace(config.train, compile=False)), Path())  # nothing is run
    total, an_epoch = session.total_images, session.train_loader.images_per_epoch
    points = [round(total * index / 599) for index in range(600)]
    rates = [learning_rate(seen, total, an_epoch, config.optim) for seen in points]
    return Plan(_rows(session), points, rates)


def _rows(session: Session) -> dict[str, str]:
    config, model, optim = session.config, session.bare_model, session.config.optim
    size, steps = session.preprocessing.image_size, session.train_loader.steps_per_epoch
    num_processes = session.accelerator.num_processes
    macs = multiply_adds(model, size)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return {
        "model": f"{session.model_name}, image {size}, {len(session.class_names)} classes",
        "parameters": f"{count_parameters(model):,}, of which {trained:,} are trained",
        "multiply-adds an image": f"{macs / 1e9:.4f} G forward, attention's products included",
        "images": f"{len(session.train_split):,} to train on, {session.val_loader.num_total:,} to validate",
        "steps": f"{session.total_steps:,} of {config.data.batch_size} images "
        f"({config.train.epochs} epochs of {steps})",
        "warm-up": f"{round(optim.warmup_epochs * steps):,} steps",
        "peak rate": f"{optim.lr:g}, constant after warm-up"
        if optim.schedule == "constant"
        else f"{optim.lr:g}, {optim.schedule} to {optim.min_lr:g}",
        "training arithmetic": f"{_training_operations(session, macs) / 1e15:.4g} PFLOP "
        "(forward and backward, 2 operations a multiply-add)",
        "device": f"{session.accelerator.device.type}, {num_processes} process(es), {session.precision}",
        "memory": _shown(_memory(session)),
    }


def _training_operations(session: Session, macs: int) -> int:
    """Forward once and backward twice as much; a frozen backbone is passed forward only."""
    factor = 1 if session.config.model.freeze_backbone else 3
    return 2 * factor * macs * session.total_images


def _memory(session: Session) -> dict[str, int]:
    """Bytes by what they hold, in one process."""
    train, micro_batches = session.config.train, session.config.train.accumulation_steps
    parts = training_memory(
        session.bare_model,
        session.preprocessing.image_size,
        batch_size=session.config.data.batch_size // micro_batches // session.accelerator.num_processes,
        optimizer=session.config.optim.name,
        precision=session.precision,
        ema=train.ema_decay is not None,
        gradient_checkpointing=train.gradient_checkpointing,
        device_type=session.accelerator.device.type,
    )
    if session.task.teacher is not None:
        parts["teacher"] = sum(tensor.nbytes for tensor in session.task.teacher.model.state_dict().values())
    return parts


def _shown(parts: dict[str, int]) -> str:
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
