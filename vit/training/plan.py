"""`vit plan`: the steps, rates, sizes and memory of a run, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vit.config import RunConfig
from vit.data.file_source import check_outside
from vit.training.display import run_facts
from vit.training.schedule import rate_curve
from vit.training.session import open_session
from vit.wording import counted

_MARKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Plan:
    """The numbers of a run that has not begun; the rates are those of `rate_curve`."""

    rows: dict[str, str]
    unit: str
    samples_seen: list[int]
    rates: list[float]

    def text(self) -> str:
        width = max(len(name) for name in self.rows)
        lines = [f"{name:{width}}  {value}" for name, value in self.rows.items()]
        top = max(self.rates) or 1.0
        shown = self.rates[:: max(1, len(self.rates) // 60)]  # a short run has fewer
        marks = "".join(_MARKS[round(rate / top * (len(_MARKS) - 1))] for rate in shown)
        return "\n".join([*lines, f"{'learning rate':{width}}  {marks}"])


def make_plan(config: RunConfig, origins: Mapping[str, str] | None = None, *, figure: Path | None = None) -> Plan:
    """Do everything that training does before its first step: open the data, load model and weights.

    It therefore raises ValueError for every setting that training would refuse, and for a figure that would land among
    the images. `origins` says where each setting came from.
    """
    session = open_session(config, Path(), compiles=False)  # nothing is run
    if figure is not None and session.task.info.images is not None:
        check_outside("--figure", figure, session.task.info.images[0].source)
    optim, loader = config.optim, session.task.train_loader
    warmup = session.warmup_samples(config.train.epochs)
    decay = f"to {optim.min_lr:g}" if optim.schedule in ("cosine", "linear") else "after warm-up"
    rows = {
        **run_facts(session, origins or {}),
        **session.report.plan(session.precision),
        "warm-up": counted(round(warmup / loader.samples_per_epoch * loader.steps_per_epoch), "step"),
        "peak rate": f"{optim.lr:g}, {optim.schedule} {decay}",
    }
    points, rates = rate_curve(session.total_samples, warmup, optim)
    return Plan(rows, session.task.info.unit, points, rates)


def draw_plan(plan: Plan, path: Path) -> None:
    """The learning rate's curve as a PNG, its numbers beside it."""
    from vit.figures.schedule import plot_schedule
    from vit.figures.style import save_figure

    numbers = {
        f"{plan.unit}_seen": plan.samples_seen,
        "lr": plan.rates,
        "conventions": f"rate of the step after {plan.unit}_seen {plan.unit}",
    }
    save_figure(plot_schedule(plan.samples_seen, plan.rates, plan.unit), path, numbers)
