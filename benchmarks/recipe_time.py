"""How long the trainings of several recipes take on this machine, in turns.

Of each, some optimizer steps are timed at every size of its images, in a process of its own, as its training takes
them: reading and augmenting, forward and backward pass, the optimizer, averaged weights.
"""

from __future__ import annotations

import random
import resource
import shlex
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.epochs import seconds_per_epoch
from benchmarks.machine_load import Load
from benchmarks.timing import quartiles
from vit.config import check
from vit.processor import machine
from vit.settings import ResolvedRun, resolve_run

CONVENTIONS = {
    "seconds_per_epoch": "of optimizer steps, by turn; the mean over the epochs, whose images may grow. Some steps are "
    "timed at each size of the images, after the first ones, in which blocks are compiled",
    "minutes": "all epochs of the training, from the median of the turns; without imports, compilation, validation "
    "and test",
    "times_the_first": "seconds over those of the first recipe in the same turn; quartiles of the turns",
    "other_load": "share of all cores that other processes, and the host, took meanwhile, at most",
}


def recipe_times(recipes: Sequence[str], turns: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Time each of the recipes, a configuration with options of `vit train`, in every turn.

    ValueError for a recipe that cannot be read or trained; BusyMachine if others take more than a twentieth of the
    machine.
    """
    check(turns >= 1, "--turns", turns, "it must be at least 1")
    asked = {recipe: _resolve(recipe) for recipe in recipes}
    check(len(asked) == len(recipes), "RECIPE", " ".join(recipes), "each must be another one")
    seconds: dict[str, list[float]] = {recipe: [] for recipe in asked}
    most, order = 0.0, random.Random("recipes")
    for turn in range(1, turns + 1):
        for recipe in order.sample(list(asked), len(asked)):
            load, before = Load(), _children()
            # A process of its own: what one recipe compiled or keeps in memory is nothing to the next.
            with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
                seconds[recipe].append(pool.submit(seconds_per_epoch, asked[recipe], Path("runs/unused")).result())
            most = max(most, load.refuse(_children() - before))
            say(f"turn {turn}, {recipe}: {seconds[recipe][-1]:.1f} s an epoch")
    first = seconds[recipes[0]]
    rows = [
        {
            "recipe": recipe,
            "epochs": (epochs := asked[recipe].config.train.epochs),
            "precision": asked[recipe].config.train.precision,
            "seconds_per_epoch": own,
            "minutes": statistics.median(own) * epochs / 60,
            "times_the_first": quartiles([one / other for one, other in zip(own, first, strict=True)]),
        }
        for recipe, own in seconds.items()
    ]
    return {"rows": rows, "turns": turns, "other_load": most, "machine": machine("cpu"), "conventions": CONVENTIONS}


def _resolve(recipe: str) -> ResolvedRun:
    config, *options = shlex.split(recipe)
    return resolve_run(config, options, "RECIPE")


def _children() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)
