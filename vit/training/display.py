"""A run as its user sees it: a header, then a bar in a terminal, or a line an epoch where the output goes elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tqdm import tqdm

from vit.config import ImageRun
from vit.evaluation.cost import count_parameters
from vit.progress import Progress, duration, in_terminal, progress_bar
from vit.settings import RESET, SHRUNK, flat_settings
from vit.training.progress import StepResult
from vit.training.remaining import RemainingTime
from vit.training.session import Session
from vit.wording import counted

FEW_STEPS = 200
_WHY_RESET = "the command line names another model or optimizer than the file"
SECONDS_BEFORE_ESTIMATE = 3.0
"""Training time, not counting the first step, after which a log gets its first estimate if no epoch has ended."""


@contextmanager
def displayed(session: Session, origins: Mapping[str, str]) -> Iterator[Display]:
    """Print the header, and show the run from its present step on; `origins` says where each setting came from.

    Nothing is printed where nothing is left to train.
    """
    is_finished = session.progress.step >= session.total_steps
    if session.is_main and not is_finished:
        rows = header(session, origins)
        width = max(map(len, rows))
        print("\n".join(f"{name:{width}}  {value}" for name, value in rows.items()), flush=True)
    quiet = is_finished or not (session.is_main and in_terminal())  # elsewhere the lines of epochs take the bar's place
    title, done = session.task.info.model_name, session.progress.step
    with progress_bar(title, session.total_steps, unit="step", done=done, quiet=quiet, alike=False) as bar:
        yield Display(session, bar)


def header(session: Session, origins: Mapping[str, str]) -> dict[str, str]:
    """The facts in few rows: those of one model in one, and notes last."""
    rows = run_facts(session, origins)
    parameters = list(session.unwrapped_model.parameters())
    frozen = "" if all(each.requires_grad for each in parameters) else f", {_num_trained(session):,} of them trained"
    cost = f"; {rows['multiply-adds an image'].partition(' forward')[0]} multiply-adds" if "images" in rows else ""
    rows["model"] += f"; {count_parameters(session.unwrapped_model):,} parameters{frozen}{cost}"
    notes = {name: rows.pop(name) for name in list(rows) if name.startswith("note") or name in ("reset", "shrunk")}
    for name in ("parameters", "multiply-adds an image"):
        rows.pop(name, None)
    return rows | {"run": str(session.run)} | notes


def _num_trained(session: Session) -> int:
    return sum(parameter.numel() for parameter in session.unwrapped_model.parameters() if parameter.requires_grad)


def run_facts(session: Session, origins: Mapping[str, str]) -> dict[str, str]:
    """Model, data, length and device of a run, for its header and its plan."""
    settings = flat_settings(session.config)
    shrunk = [f"{name} to {settings[name]}" for name, origin in origins.items() if origin == SHRUNK]
    reset = [name for name, origin in origins.items() if origin == RESET]
    processes = session.accelerator.num_processes
    steps_per_epoch = session.task.train_loader.steps_per_epoch
    return {
        **session.report.describe(),
        "parameters": f"{count_parameters(session.unwrapped_model):,}, of which {_num_trained(session):,} are trained",
        "steps": f"{session.total_steps:,} ({counted(session.config.train.epochs, 'epoch')} of {steps_per_epoch})"
        f"{_advice(session)}",
        "device": f"{session.accelerator.device.type}, {session.precision}, "
        f"{counted(processes, 'process', 'processes')}",
        **({"reset": f"{', '.join(reset)}; {_WHY_RESET}"} if reset else {}),
        **({"shrunk": f"{', '.join(shrunk)}; in proportion to train.epochs"} if shrunk else {}),
    }


def _advice(session: Session) -> str:
    """A remark for images so few that a model from scratch learns little from them."""
    config = session.config
    if not isinstance(config, ImageRun) or config.model.pretrained or session.total_steps >= FEW_STEPS:
        return ""
    return "; few for a model from scratch: raise --epochs, or begin with pretrained weights (--model.pretrained)"


class Display:
    """The display of a run in training. Every process has one, only that of the main process is seen."""

    def __init__(self, session: Session, bar: Progress) -> None:
        self._session, self._bar = session, bar
        self._prints_lines = session.is_main and not (in_terminal() and sys.stdout.isatty())
        self._shown, self._validated = "", ""
        self._remaining, self._continued = RemainingTime(session), session.progress.step > 0
        self._told = False
        self._begin_epoch()

    def show(self, text: str) -> None:
        """Show the time left and the logged means beside the bar, of which a narrow terminal cuts the end."""
        self._shown = text
        self._bar.set_postfix_str(f"{self._left()}, {text}{self._validated}")

    def step(self, taken: StepResult) -> None:
        """Count a step that was taken."""
        self._bar.update(1)
        self._loss += taken.loss * taken.weight
        self._weight += taken.weight
        self._rate = taken.rate
        self._remaining.step_taken()
        if not self._told and self._remaining.measured > SECONDS_BEFORE_ESTIMATE:
            self._told, session = True, self._session
            place = f"epoch {session.progress.epoch + 1} of {session.config.train.epochs}"
            self._print(f"{place}: {self._speed()}, about {self._left()}")

    def epoch(self, metrics: Mapping[str, float]) -> None:
        """Show an epoch that has ended; `metrics` are empty where it was not validated."""
        session, info = self._session, self._session.task.info
        if metrics:
            value = metrics[session.goal]
            self._validated = f", {session.goal} {f'{value:.2%}' if info.metric_is_fraction else f'{value:.4g}'}"
            beside = ((name, metrics[session.goal.removesuffix(info.metric) + name]) for name in info.accuracies)
            self._validated += "".join(f", {name} {accuracy:.2%}" for name, accuracy in beside)
        self._told = True
        if self._weight:
            shown = self._validated if metrics else ""
            self._print(
                f"epoch {session.progress.epoch} of {session.config.train.epochs}: loss {self._loss / self._weight:.4f}"
                f"{shown}, rate {self._rate:.3g}, {self._speed()}, {self._left()}"
            )
        if self._shown:
            self.show(self._shown)
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        progress = self._session.progress
        self._loss, self._weight, self._rate = 0.0, 0.0, 0.0
        self._seconds, self._samples = progress.seconds, progress.samples_seen
        self._remaining.epoch_begun()

    def _speed(self) -> str:
        progress, unit = self._session.progress, self._session.task.info.unit
        samples, seconds = progress.samples_seen - self._samples, progress.seconds - self._seconds
        return f"{samples / max(seconds, 1e-9):,.0f} {unit}/s"

    def _left(self) -> str:
        if self._session.progress.step == self._session.total_steps:
            return f"{duration(self._remaining.elapsed)} {'since it was continued' if self._continued else 'in all'}"
        return f"{duration(self._remaining.seconds())} left"

    def _print(self, line: str) -> None:
        if self._prints_lines:
            tqdm.write(line, file=sys.stdout)  # past a bar, where only the output is no terminal
            sys.stdout.flush()
