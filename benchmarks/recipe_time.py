"""How long the trainings of several recipes take on this machine, in turns.

Of each, some optimizer steps are timed at every size of its images, in a process of its own, as its training takes
them: reading and augmenting, forward and backward pass, the optimizer, averaged weights.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.epochs import check_long_enough, seconds_of
from benchmarks.machine_load import BusyMachine, Load
from benchmarks.timing import quartiles
from vit.cli import run_command
from vit.config import check
from vit.processor import machine
from vit.settings import resolve_run
from vit.tasks.classification import require_classification
from vit.tasks.classification.config import ClassificationRun
from vit.training.session import open_session

CONVENTIONS = {
    "seconds_per_epoch": "of optimizer steps, by turn; the mean over the epochs, whose images may grow. Some steps are "
    "timed at each size of the images, after the first ones, in which blocks are compiled",
    "minutes": "all epochs of the training, from the median of the turns; without imports, compilation, validation "
    "and test",
    "times_the_first": "seconds over those of the first recipe in the same turn; quartiles of the turns",
    "other_load": "share of all cores that other processes, and the host, took meanwhile, at most",
}
_SAMPLE = 2.0
"""Seconds for which the load is watched before the first turn."""
_ATTEMPTS = 3
"""Measurements of a recipe in one turn, while others take too much of the machine."""


def recipe_times(recipes: Sequence[str], turns: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Time each of the recipes, a configuration with options of `vit train`, in every turn.

    ValueError for a recipe that cannot be read, timed or trained, before any is timed; BusyMachine if others keep
    taking more than `machine_load.MOST_OTHER_LOAD`.
    """
    check(turns >= 1, "--turns", turns, "it must be at least 1")
    asked = {recipe: _resolve(recipe) for recipe in recipes}
    check(len(asked) == len(recipes), "RECIPE", " ".join(recipes), "the recipes must differ")
    opened = {recipe: _in_a_process(recipe) for recipe in asked}
    load = Load()
    time.sleep(_SAMPLE)
    most = load.refuse()
    seconds: dict[str, list[float]] = {recipe: [] for recipe in asked}
    order = random.Random("recipes")
    for turn in range(1, turns + 1):
        for recipe in order.sample(list(asked), len(asked)):
            taken, share = _measure(recipe, say)
            seconds[recipe].append(taken)
            most = max(most, share)
            say(f"turn {turn}, {recipe}: {taken:.1f} s an epoch")
    first = seconds[recipes[0]]
    rows = [
        {
            "recipe": recipe,
            **opened[recipe],
            "epochs": (epochs := asked[recipe].train.epochs),
            "seconds_per_epoch": own,
            "minutes": statistics.median(own) * epochs / 60,
            "times_the_first": quartiles([one / other for one, other in zip(own, first, strict=True)]),
        }
        for recipe, own in seconds.items()
    ]
    return {"rows": rows, "turns": turns, "other_load": most, "machine": machine("cpu"), "conventions": CONVENTIONS}


def _resolve(recipe: str) -> ClassificationRun:
    try:
        config, *options = shlex.split(recipe)
    except ValueError as error:
        raise ValueError(f"RECIPE: {recipe!r} is not valid: a quotation mark is left open") from error
    run = require_classification(resolve_run(config, options, "RECIPE").config, "RECIPE", recipe)
    check(run.device in ("auto", "cpu"), "device", run.device, "steps are timed on the CPU")
    return replace(run, device="cpu")


def _measure(recipe: str, say: Callable[[str], None]) -> tuple[float, float]:
    """Seconds of an epoch, and the other load meanwhile. BusyMachine if it is too much again and again."""
    for attempt in range(1, _ATTEMPTS + 1):
        load, before = Load(), _own_seconds()
        taken = _in_a_process(recipe, "timed")["seconds"]
        try:
            return taken, load.refuse(_own_seconds() - before)
        except BusyMachine as busy:
            if attempt == _ATTEMPTS:
                raise
            say(f"{recipe}: measured again, as {busy}")
    raise AssertionError


def _in_a_process(recipe: str, *timed: str) -> dict[str, Any]:
    """Open the recipe, and time it if asked to, where nothing is compiled or kept of another one's.

    In a session of its own, so that Ctrl-C interrupts this process alone, which ends the other.
    """
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    words = [sys.executable, "-m", "benchmarks.recipe_time", recipe, *timed]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, stdout=pipe, stderr=pipe, text=True, env=os.environ | {"PYTHONPATH": path}, start_new_session=True
    ) as process:
        try:
            printed, said = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode == 0:
        answer: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return answer
    line = said.strip().splitlines()[-1] if said.strip() else "perhaps for want of memory"
    if process.returncode == 2:
        raise ValueError(line.removeprefix("vit: "))
    raise ChildProcessError(f"{recipe}: its process ended with exit code {process.returncode}: {line}")


def _answer(words: list[str]) -> None:
    recipe, *timed = words
    session = open_session(_resolve(recipe), Path("runs/unused"))
    check_long_enough(session)
    answer: dict[str, Any] = {"seconds": seconds_of(session)} if timed else {"precision": session.precision}
    print(json.dumps(answer))


def _own_seconds() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


if __name__ == "__main__":
    sys.exit(run_command(_answer, sys.argv[1:]))
