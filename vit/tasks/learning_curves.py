"""The learning curves of a run, with the numbers beside the picture, for every task whose loss falls step by step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vit.figures.learning_curves import CONVENTIONS, plot_learning_curves
from vit.figures.style import save_figure
from vit.runs import read_metrics
from vit.tasks.task import Rates


def draw_learning_curves(run: Path, rates: Rates | None, conventions: Mapping[str, str] = CONVENTIONS) -> None:
    """Write `figures/learning_curves.png` from the run's history; `rates`: the schedule that it followed, if known."""
    figures = run / "figures"
    figures.mkdir(exist_ok=True)
    history = read_metrics(run)
    numbers = {"history": history, "rates": rates, "conventions": conventions}
    save_figure(plot_learning_curves(history, rates), figures / "learning_curves.png", numbers)
