"""Accuracy of a model in other forms, and which layers cost it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from results.records import RESULTS, percent
from results.tables.cells import points
from vit.wording import markdown_table


def deployed(names: Mapping[str, str]) -> str:
    """A row for each model: its accuracy in float32, and what each of its other forms gains or loses.

    `names`: of the models, by file of `results/deployed/` (`python -m benchmarks deployed`).
    """
    rows = []
    for file, name in names.items():
        found = json.loads((RESULTS / "deployed" / f"{file}.json").read_text())
        changes = [points(form["difference"], form["interval"], 2) for form in found["forms"].values()]
        rows.append((name, f"{found['images']:,}", percent([found["top1"]]), *changes))
    header = ("model", "test images", "float32", *found["forms"])
    return markdown_table(header, rows)


def sensitivity(file: str, most: int) -> str:
    """A row for each of the layers whose quantisation alone changes the logits most, and one for all of them.

    `file`: in `results/deployed/`, measured with `--sensitivity`.
    """
    found = json.loads((RESULTS / "deployed" / f"{file}.json").read_text())["sensitivity"]
    columns = (found["layers"], found["lost"], *found["interval"], found["logit_change"])
    *alone, together = zip(*columns, strict=True)
    rows = [
        (name, points(-lost, (-high, -low), 2), f"{change:.1%}")
        for name, lost, low, high, change in (*sorted(alone, key=lambda row: -row[-1])[:most], together)
    ]
    return markdown_table(("in eight bits", "points gained or lost", "change of the logits"), rows)
