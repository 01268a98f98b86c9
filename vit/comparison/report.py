"""Files of a comparison: JSON, CSV, Markdown, figures with their numbers, and one HTML page with all of it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vit.comparison.compare import Comparison
from vit.comparison.figures import draw_figures
from vit.comparison.page import comparison_page, page_html, page_markdown
from vit.comparison.tables import Table
from vit.config import check_arguments
from vit.config.validation import flatten
from vit.runs import keep_earlier, write_csv, write_json

_ENDINGS = (".json", ".csv", ".md", ".html", "_pairs.csv", "_classes.csv")
_OF_DATA = ("fingerprint", "training_fingerprint")
_PICTURE = re.compile(r"\((figures/[^)]+)\.png\)")


@check_arguments
def write_report(comparison: Comparison, folder: str | Path, first_tables: Sequence[Table] = ()) -> None:
    """Write comparison.{json,csv,md,html}, comparison_{pairs,classes}.csv and figures/ to `folder`.

    `first_tables` stand on the page before those of the comparison.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    result = comparison.result
    keep_earlier_report(folder, "comparison", result)
    write_json(folder / "comparison.json", result)
    write_csv(folder / "comparison.csv", [flat_row(model) for model in result["models"]])
    write_csv(folder / "comparison_pairs.csv", [flat_row(pair) for pair in result["pairs"]])
    pairs = zip(result["pairs"], result["classes"], strict=True)
    classes = [
        {"first_model": pair["first"], "second_model": pair["second"], **row} for pair, rows in pairs for row in rows
    ]
    write_csv(folder / "comparison_classes.csv", classes)
    figures = draw_figures(comparison, folder / "figures")
    links = {f"figures/{path.name}": caption for path, caption in figures.items()}
    page = comparison_page(result)
    page = replace(page, tables=[*first_tables, *page.tables])
    (folder / "comparison.md").write_text(page_markdown(page, links), encoding="utf-8")
    (folder / "comparison.html").write_text(page_html(page, figures), encoding="utf-8")


def keep_earlier_report(folder: Path, stem: str, result: dict[str, Any]) -> None:
    """Put the report `stem` in `folder` aside if it is of other models, images or settings, and say so."""
    subject = _subject(json.loads(json.dumps(result)))

    def is_same(before: dict[str, Any]) -> bool:
        same_images = _are_same_files(before["data"], result["data"])
        return same_images and _subject(before) == subject and not _loses(before, result)

    put_report_aside(folder, stem, is_same)


def put_report_aside(
    folder: Path, stem: str, is_same: Callable[[dict[str, Any]], bool], others: Sequence[str] = ()
) -> None:
    """Put the report `stem` in `folder`, its pictures and the files `others` aside, unless `is_same` of its content."""
    page = folder / f"{stem}.md"
    pictures = _PICTURE.findall(page.read_text(encoding="utf-8", errors="replace")) if page.is_file() else []
    files = [*(f"{stem}{ending}" for ending in _ENDINGS), *others]
    files += [f"{picture}{ending}" for picture in pictures for ending in (".png", ".svg", ".json", ".csv")]
    if earlier := keep_earlier(folder, stem, files, is_same):
        said = f"note: {folder}/{stem}.json was of other models, images or settings, and is in {earlier} now"
        print(said, file=sys.stderr)


def _subject(result: dict[str, Any]) -> Any:
    """The models, images and settings of a report, which another one of the same may replace."""
    models = [[model[name] for name in ("source", "identity", "gmacs", "provenance")] for model in result["models"]]
    data = [result["data"][name] for name in _OF_DATA if name in result["data"]]
    return models, data, result.get("precision"), sorted(result.get("features", ()))


def _are_same_files(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether images of equal names are in one place and of the same sizes; reports of earlier versions have none."""
    same_place = Path(before["root"]).resolve() == Path(now["root"]).resolve()
    return same_place and before.get("sizes", now["sizes"]) == now["sizes"]


def _loses(before: dict[str, Any], result: dict[str, Any]) -> bool:
    """Whether an earlier report has measured something that this one has not, as speeds, corruptions or seeds."""
    rows = zip(before["models"], result["models"], strict=True)
    if before.keys() - result or any(earlier.keys() - row for earlier, row in rows):
        return True
    return not trained_seeds(before) <= trained_seeds(result)


def trained_seeds(result: Mapping[str, Any]) -> set[tuple[str, int]]:
    """The models and seeds of a result that tells of fine-tuning; none of any other."""
    return {(row["name"], row["seed"]) for row in result.get("finetuning", {}).get("runs", ())}


def flat_row(content: dict[str, Any]) -> dict[str, Any]:
    """Flatten nested dictionaries to dotted names, and intervals to `.low` and `.high`."""
    row: dict[str, Any] = {}
    for name, value in flatten(content).items():
        if isinstance(value, list):
            low, high = value
            row |= {f"{name}.low": low, f"{name}.high": high}
        else:
            row[name] = value
    return row
