"""Effects of the ingredients of a recipe, measured by leaving them out and by adding them."""

from __future__ import annotations

import json
from typing import Any

from results.pictures import RECIPES, effects, whole_seeds
from results.records import RESULTS, percent
from results.tables.cells import points
from vit.wording import markdown_table


def ingredient_effects(name: str) -> str:
    """A row for each ingredient: the points that it brings, a column a recipe; before them the recipes' accuracies.

    `name`: of the JSON of `python -m benchmarks ablation`, in `results/`.
    """
    result = json.loads((RESULTS / f"{name}.json").read_text())
    runs = [run for run in result["runs"] if run["seed"] in whole_seeds(name, result)]
    columns = effects(name)
    own = [[run for run in runs if run["variant"] == recipe] for recipe in RECIPES if RECIPES[recipe] in columns]
    accuracies = [f"{percent([run['test.top1'] for run in found])}, {found[0]['epochs']} epochs" for found in own]
    rows = [(cells[0]["name"], *map(_cell, cells)) for cells in zip(*columns.values(), strict=True)]
    return markdown_table(("ingredient", *columns), [("*test top-1 of the recipe*", *accuracies), *rows])


def _cell(effect: dict[str, Any]) -> str:
    if effect["low"] is None:
        return f"{100 * effect['value']:+z.2f}"
    return points(effect["value"], (effect["low"], effect["high"]))
