"""Effects of the ingredients of a recipe, measured by leaving them out and by adding them."""

from __future__ import annotations

import json
from typing import Any

from results.pictures import effects
from results.records import RESULTS, percent
from results.tables.markdown import markdown, points


def ingredient_effects(name: str) -> str:
    """A row for each ingredient: points that it brings to the plain recipe and in the best one; before them, both.

    `name`: of the JSON of `python -m benchmarks ablation`, in `results/`.
    """
    runs = json.loads((RESULTS / f"{name}.json").read_text())["runs"]
    own = {kind: [run for run in runs if run["variant"] == kind] for kind in ("plain", "best")}
    accuracies = [
        f"{percent([run['test.top1'] for run in found])}, {found[0]['epochs']} epochs" for found in own.values()
    ]
    columns = effects(name)
    rows = [(plain["name"], _cell(plain), _cell(best)) for plain, best in zip(*columns.values(), strict=True)]
    return markdown(("ingredient", *columns), [("*test top-1 of the recipe*", *accuracies), *rows])


def _cell(effect: dict[str, Any]) -> str:
    if effect["low"] == effect["high"]:
        return f"{100 * effect['value']:+.2f}"
    return points(effect["value"], (effect["low"], effect["high"]))
