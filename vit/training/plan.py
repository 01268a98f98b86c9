"""What a run will do and cost, said before anything is trained: steps, rates, sizes, memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vit.config import RunConfig
from vit.evaluation.cost import count_parameters
from vit.training.schedule import learning_rate
from vit.training.setup import Session, prepare

_MARKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Plan:
    """The numbers of a run that has not begun; rates are at evenly spaced points of it."""

    rows: dict[str, str]
    unit: str
    samples_seen: list[int]
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
    session = prepare(config, Path(), compiles=False)  # nothing is run
    total, an_epoch = session.total_samples, session.task.train_loader.samples_per_epoch
    points = [round(total * index / 599) for index in range(600)]
    rates = [learning_rate(seen, total, an_epoch, config.optim) for seen in points]
    return Plan(_rows(session), session.task.unit, points, rates)


def _rows(session: Session) -> dict[str, str]:
    config, task, optim = session.config, session.task, session.config.optim
    steps = task.train_loader.steps_per_epoch
    trained = sum(parameter.numel() for parameter in session.bare_model.parameters() if parameter.requires_grad)
    decays = optim.schedule in ("cosine", "linear")
    return {
        **task.plan(session.precision),
        "parameters": f"{count_parameters(session.bare_model):,}, of which {trained:,} are trained",
        "steps": f"{session.total_steps:,} ({config.train.epochs} epochs of {steps})",
        "warm-up": f"{round(optim.warmup_epochs * steps):,} steps",
        "peak rate": f"{optim.lr:g}, {optim.schedule} {f'to {optim.min_lr:g}' if decays else 'after warm-up'}",
        "device": f"{session.accelerator.device.type}, {session.accelerator.num_processes} process(es), "
        f"{session.precision}",
    }


def draw_plan(plan: Plan, path: Path) -> None:
    """The learning rate's curve as a PNG, its numbers beside it."""
    from vit.figures.schedule import schedule
    from vit.figures.style import save_figure

    numbers = {
        f"{plan.unit}_seen": plan.samples_seen,
        "lr": plan.rates,
        "conventions": f"rate of the step after {plan.unit}_seen {plan.unit}",
    }
    save_figure(schedule(plan.samples_seen, plan.rates, plan.unit), path, numbers)
