"""What a comparison leaves: JSON, CSV, Markdown, pictures with their numbers, and one HTML page with all of it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit.evaluation.comparison.compare import Comparison
from vit.evaluation.comparison.page import markdown, page
from vit.evaluation.comparison.pictures import draw_pictures
from vit.runs import write_json


def write_report(comparison: Comparison, folder: Path) -> None:
    """Fill `folder`: comparison.{json,csv,md,html}, comparison_{pairs,classes}.csv and figures/."""
    folder.mkdir(parents=True, exist_ok=True)
    result = comparison.result
    write_json(folder / "comparison.json", result)
    write_csv(folder / "comparison.csv", [flat(model) for model in result["models"]])
    write_csv(folder / "comparison_pairs.csv", [flat(pair) for pair in result["pairs"]])
    pairs = zip(result["pairs"], result["classes"], strict=True)
    classes = [
        {"first_model": pair["first"], "second_model": pair["second"], **row} for pair, rows in pairs for row in rows
    ]
    write_csv(folder / "comparison_classes.csv", classes)
    pictures = draw_pictures(result, comparison.sides, comparison.test, folder / "figures")
    beside = {f"figures/{path.name}": words for path, words in pictures.items()}
    (folder / "comparison.md").write_text(markdown(result, beside), encoding="utf-8")
    (folder / "comparison.html").write_text(page(result, pictures), encoding="utf-8")


def flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries with dotted names; the two ends of an interval as `.low` and `.high`."""
    row: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            row |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            low, high = value
            row |= {f"{prefix}{name}.low": low, f"{prefix}{name}.high": high}
        else:
            row[f"{prefix}{name}"] = value
    return row


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A column for every name that any row has; a name that a row has not is empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(rows)
