"""The files of a comparison of multi-label runs: JSON, Markdown, a figure with its numbers, one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vit.comparison.page import Page, data_summary, page_html, page_markdown, page_title
from vit.comparison.report import keep_earlier_report
from vit.comparison.tables import (
    Table,
    confounders_table,
    difference_text,
    p_value,
    pair_label,
    percent_with_interval,
    short_labels,
    titles,
    verdict,
)
from vit.figures.average_precision import plot_compared_precision
from vit.figures.intervals import Estimate
from vit.figures.style import save_figure
from vit.runs import write_json

Result = dict[str, Any]
MOST_CLASSES = 40
"""In the table and the figure; `comparison.json` has all."""


def write_report(result: Result, folder: Path) -> None:
    """Write comparison.{json,md,html} and figures/ to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    keep_earlier_report(folder, "comparison", result)
    write_json(folder / "comparison.json", result)
    path = folder / "figures" / "average_precision.png"
    figures = {path: draw_classes(result, path)}
    page = Page(
        page_title(result),
        data_summary(result),
        verdicts(result),
        result["warnings"],
        [models_table(result), pairs_table(result), classes_table(result), confounders_table(result)],
        result["conventions"],
        result["versions"],
    )
    links = {f"figures/{path.name}": caption for path, caption in figures.items()}
    (folder / "comparison.md").write_text(page_markdown(page, links), encoding="utf-8")
    (folder / "comparison.html").write_text(page_html(page, figures), encoding="utf-8")


def verdicts(result: Result) -> list[str]:
    """One sentence for each pair, about mean average precision."""
    pairs = result["pairs"]
    return [
        verdict(pair, pair["map_difference"], pair["map_interval"], len(pairs), " in mAP", "bootstrap")
        for pair in pairs
    ]


def summary(result: Result) -> list[str]:
    """Lines for a terminal: mean average precisions, verdicts, warnings."""
    width = max(len(model["name"]) for model in result["models"])
    lines = [
        f"{model['name']:<{width}}  mAP {percent_with_interval(model['map'], model['map_interval'])}, F1 macro "
        f"{model['f1_macro']:.4f}, micro {model['f1_micro']:.4f}"
        for model in result["models"]
    ]
    return [*lines, *verdicts(result), *(f"not like for like: {line}" for line in result["warnings"])]


def shown_classes(result: Result) -> list[dict[str, Any]]:
    """The classes that an image has; of more than `MOST_CLASSES`, those that the models differ on most, in order."""
    rows = [row for row in result["classes"] if row["images"]]

    def spread(row: dict[str, Any]) -> float:
        values = [model["average_precision"] for model in row["models"].values()]
        return float(max(values) - min(values))

    chosen = {row["class"] for row in sorted(rows, key=spread, reverse=True)[:MOST_CLASSES]}
    return [row for row in rows if row["class"] in chosen]


# ------------------------------------------------------------------ tables


def models_table(result: Result) -> Table:
    models = result["models"]
    rows = [
        ["mean average precision", *(percent_with_interval(model["map"], model["map_interval"]) for model in models)],
        ["F1 at its own thresholds, macro", *(f"{model['f1_macro']:.4f}" for model in models)],
        ["F1 at its own thresholds, micro", *(f"{model['f1_micro']:.4f}" for model in models)],
        ["parameters", *(f"{model['params'] / 1e6:.3g} M" for model in models)],
        ["multiply-adds per image", *(f"{model['gmacs']:.4g} G" for model in models)],
        ["images evaluated", *(f"{model['n_seen']:,} of {model['n_total']:,}" for model in models)],
    ]
    return Table("Models", ["", *titles(result).values()], rows, "In brackets: 95 % intervals.")


def pairs_table(result: Result) -> Table:
    rows = [
        [
            pair_label(result, pair),
            _difference(pair["map_difference"], pair["map_interval"]),
            p_value(pair["p"]),
            p_value(pair["p_holm"]),
        ]
        for pair in result["pairs"]
    ]
    return Table("Differences", ["first − second", "mAP, points", "p (bootstrap)", "p (Holm)"], rows)


def classes_table(result: Result) -> Table:
    """Average precision of each class by model; of two models with the difference."""
    shown = shown_classes(result)
    (pair, *others), names = result["pairs"], short_labels(result)
    header = ["class", "images", *names.values(), *([] if others else [f"{pair_label(result, pair)}, points"])]
    rows = []
    for row in shown:
        cells = [
            percent_with_interval(model["average_precision"], model["interval"]) for model in row["models"].values()
        ]
        if not others:
            found = pair["classes"][row["class"]]
            cells.append(_difference(found["difference"], found["interval"]))
        rows.append([row["class"], str(row["images"]), *cells])
    note = f"{len(shown)} of {len(result['classes'])} classes: " if len(shown) < len(result["classes"]) else ""
    if note:
        note += "those that an image has, and of these the ones on which the models differ most. "
    return Table("Average precision by class", header, rows, f"{note}In brackets: 95 % intervals of one class each.")


def _difference(difference: float, interval: list[float]) -> str:
    low, high = interval
    return difference_text((100 * difference, 100 * low, 100 * high), 2, 1)


# ------------------------------------------------------------------ figure


def draw_classes(result: Result, path: Path) -> str:
    """Draw average precision by class with its numbers beside it; returns the caption."""
    estimates = {
        title: [
            Estimate(
                f"{row['class']} ({row['images']})",
                row["models"][name]["average_precision"],
                *row["models"][name]["interval"],
            )
            for row in shown_classes(result)
        ]
        for name, title in titles(result).items()
    }
    numbers = {name: [each._asdict() for each in of_model] for name, of_model in estimates.items()}
    conventions = {key: result["conventions"][key] for key in ("average_precision", "interval")}
    save_figure(plot_compared_precision(estimates), path, {"models": numbers, "conventions": conventions})
    return (
        "Average precision of each class (its images) with 95 % intervals of a bootstrap of the images. The share of "
        "images that have the class is what guessing gets: good models lie far above it in every class, rare ones too."
    )
