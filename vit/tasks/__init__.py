"""The tasks a model can be trained for. A task is a folder here and a line of `TASKS`; nothing imports torch yet.

Each folder holds everything that knows its task, in modules of these names, imported when they are asked for:

    config      RUN: the dataclass of a run's settings (torch-free)
    training    open_task(config, accelerator, timer) -> Task
    report      open_report(task) -> Report; headline(summary) -> str: a finished run's result in a few words;
                NEXT: commands that one types next, `{run}` for its folder
    evaluation  evaluate(request, config) -> metrics: `vit eval`; config is the run's, overridden by the user

A `vit` command treats a run as an image classifier, unless the folder has the command's function:

    evaluation  open_test_images(config) -> Split: images without single labels: `vit analyze`, `vit doctor`
    comparison  compare_runs(runs, config_of, output_dir, select, leaky) -> lines: `vit compare`, where all are its runs
    analysis    analyze_run(run, config, folder, select=, num_samples=, progress=) -> names of figures: `vit analyze`
                draw_inside(run, config): figures of the model's inside at the end of `vit train`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vit.config import RunConfig

if TYPE_CHECKING:
    from vit.engine import Accelerator
    from vit.stopwatch import Timer
    from vit.tasks.task import EvalRequest, Report, Task


OPTIONAL = {
    "open_test_images": "evaluation",
    "compare_runs": "comparison",
    "analyze_run": "analysis",
    "draw_inside": "analysis",
}
"""Function → its module."""


@dataclass(frozen=True)
class TaskFolder:
    """A task's folder in `vit/tasks/`."""

    name: str
    optional: tuple[str, ...] = ()
    """Those of `OPTIONAL` that the folder has."""

    def module(self, name: str) -> Any:
        return import_module(f"vit.tasks.{self.name}.{name}")

    def function(self, name: str) -> Callable[..., Any] | None:
        """One of `OPTIONAL`; None where the folder does not have it."""
        function: Callable[..., Any] | None = None
        if name in self.optional:
            function = getattr(self.module(OPTIONAL[name]), name)
        return function

    @property
    def run_config(self) -> type[RunConfig]:
        run_config: type[RunConfig] = self.module("config").RUN
        return run_config

    def open(self, config: RunConfig, accelerator: Accelerator, timer: Timer) -> Task:
        """Open the data and build the model. ValueError for any setting that cannot be honoured."""
        task: Task = self.module("training").open_task(config, accelerator, timer)
        return task

    def report(self, task: Task) -> Report:
        report: Report = self.module("report").open_report(task)
        return report

    def headline(self, summary: dict[str, Any]) -> str:
        """A finished run's result in a few words."""
        return str(self.module("report").headline(summary))

    def next_commands(self, run: str) -> list[str]:
        """Commands that one types after training."""
        return [command.format(run=run) for command in self.module("report").NEXT]

    def evaluate(self, request: EvalRequest, config: RunConfig) -> dict[str, Any]:
        """Evaluate a checkpoint on the test set, store the results and return the metrics."""
        metrics: dict[str, Any] = self.module("evaluation").evaluate(request, config)
        return metrics


TASKS = {
    folder.name: folder
    for folder in (
        TaskFolder("classification", optional=("draw_inside",)),
        TaskFolder("multilabel", optional=("open_test_images", "compare_runs")),
        TaskFolder("masked_autoencoder"),
        TaskFolder("contrastive"),
        TaskFolder("translation", optional=("compare_runs", "analyze_run")),
        TaskFolder("regression"),
    )
}
"""By the `task` of a run's settings."""
DEFAULT_TASK = "classification"
"""For settings that name none."""
