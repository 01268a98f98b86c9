"""The results of all runs of `data_size`: curves with their spread, differences paired by seed, table and figure."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vit.evaluation.statistics import accuracy_spread
from vit.figures.data_size import plot_data_size
from vit.figures.style import save_figure
from vit.runs import keep_earlier, write_csv
from vit.wording import markdown_table

CONVENTIONS = {
    "test.top1": "fraction of the whole test set, by the weights that were best on the validation set",
    "num_images": "training images of the subset; validation images are not among them and are the same for all",
    "subsets": "nested and class-balanced, drawn by the seed, the same for every recipe",
    "images_seen": "the same for every fraction: the images of a subset are shown again and again",
    "low, high": "95 % t-interval of the mean over seeds (a seed draws the subset, the first weights, the order and "
    "the augmentation; the test set is fixed, its own sampling error is not in it); null with one seed",
    "sd": "standard deviation over seeds, n - 1 in the denominator; null with one seed",
    "lr, chosen": "the learning rate; where several were tried, whether it was the best on validation images with the "
    "first seed, for this recipe and fraction: curves and differences are of chosen runs alone; a run without "
    "numbers is one whose loss stopped being finite",
    "differences": "top-1 minus the first recipe's, taken within each seed, so on the same subset",
}


def summarize(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The rows of all runs, a curve for each recipe, and its differences to the first recipe.

    A point is of the seeds that both recipes have at that fraction, with the learning rate that was chosen for it.
    """
    every_row, rows = rows, _chosen(rows)
    recipes = list(dict.fromkeys(row["recipe"] for row in rows))
    found = {(row["recipe"], row["fraction"], row["seed"]): row["test.top1"] for row in rows}
    sizes = {row["fraction"]: row["num_images"] for row in rows}
    fractions = sorted(sizes)
    seeds = sorted({row["seed"] for row in rows})

    def point(fraction: float, by_seed: Mapping[int, float]) -> dict[str, Any]:
        return {"fraction": fraction, "num_images": sizes[fraction], **accuracy_spread(by_seed)}

    def curve(recipe: str) -> list[dict[str, Any]]:
        values = {at: {n: found[recipe, at, n] for n in seeds if (recipe, at, n) in found} for at in fractions}
        return [point(at, by_seed) for at, by_seed in values.items() if by_seed]

    def differences(recipe: str) -> list[dict[str, Any]]:
        pairs = {at: [n for n in seeds if {(recipe, at, n), (recipes[0], at, n)} <= found.keys()] for at in fractions}
        return [
            point(at, {n: found[recipe, at, n] - found[recipes[0], at, n] for n in both})
            for at, both in pairs.items()
            if both
        ]

    return {
        "runs": [dict(row) for row in every_row],
        "curves": {recipe: curve(recipe) for recipe in recipes},
        "differences": {recipe: differences(recipe) for recipe in recipes[1:]},
        "conventions": CONVENTIONS,
    }


def _chosen(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those whose learning rate was chosen; early versions tried one alone and did not say so."""
    return [row for row in rows if row.get("chosen", True)]


def write_results(result: Mapping[str, Any], folder: Path) -> None:
    """`data_size.json`, `.csv` (a line a run), `.md` (a line a fraction) and `.png` in the folder.

    An earlier result with a run that this one lacks is put aside, with a note.
    """
    runs = _cells(result)
    files = [f"data_size{ending}" for ending in (".json", ".csv", ".md", ".png", ".svg")]
    if earlier := keep_earlier(folder, "data_size", files, lambda before: _cells(before) <= runs):
        print(f"note: {folder}/data_size.json had other runs, and is in {earlier} now", file=sys.stderr)
    save_figure(plot_data_size(result["curves"], result["differences"]), folder / "data_size.png", dict(result))
    write_csv(folder / "data_size.csv", result["runs"])
    (folder / "data_size.md").write_text(data_size_markdown(result), encoding="utf-8")


def _cells(result: Mapping[str, Any]) -> set[tuple[Any, ...]]:
    """Recipe, part, seed and rate of every run of a result."""
    return {(row["recipe"], row["fraction"], row["seed"], row.get("lr")) for row in result["runs"]}


def data_size_markdown(result: Mapping[str, Any]) -> str:
    """A table with a line for each fraction: every recipe's mean and spread, and the differences to the first."""
    curves, differences = result["curves"], result["differences"]
    first = next(iter(curves))
    head = ["data", "images", *curves, *(f"{recipe} − {first}" for recipe in differences)]
    columns = [_by_fraction(points, _accuracy) for points in curves.values()]
    columns += [_by_fraction(points, _difference) for points in differences.values()]
    rows = [
        [
            f"{100 * point['fraction']:.4g} %",
            f"{point['num_images']:,}",
            *(column.get(point["fraction"], "–") for column in columns),
        ]
        for point in curves[first]
    ]
    return "\n".join([markdown_table(head, rows, "---:"), "", *_notes(result), ""])


def _notes(result: Mapping[str, Any]) -> list[str]:
    rows, curves = _chosen(result["runs"]), result["curves"]
    each = {recipe: next(row for row in rows if row["recipe"] == recipe) for recipe in curves}
    seeds = {recipe: _range([len(point["by_seed"]) for point in points]) for recipe, points in curves.items()}
    alike = len(set(seeds.values())) == 1
    told = f"{next(iter(seeds.values()))} seeds" if alike else f"seeds ({', '.join(map(': '.join, seeds.items()))})"
    spread = (
        "one seed, of which no spread is known; differences in points"
        if {*seeds.values()} == {"1"}
        else f"mean over {told} ± standard deviation; differences in points, paired by seed, with the 95 % "
        "t-interval of their mean"
    )
    return [
        f"Test top-1 of {each[next(iter(curves))]['test.n_total']:,} images, %: {spread}.",
        "",
        *(
            f"- {recipe}: {row['params']:,} parameters, {row['gmacs']:.3g} G multiply-adds an image, "
            f"{_range(_of(rows, recipe, 'images_seen'))} images seen, {_range(_of(rows, recipe, 'steps'))} steps"
            f"{_rates([row for row in result['runs'] if row['recipe'] == recipe])}."
            for recipe, row in each.items()
        ),
        *_precisions(rows),
    ]


def _rates(rows: Sequence[Mapping[str, Any]]) -> str:
    """The learning rate of a recipe's runs, or those that were tried and chosen; early versions did not say it."""
    tried = sorted({row["lr"] for row in rows if "lr" in row})
    if len(tried) < 2:
        return f", rate {tried[0]:g}" if tried else ""
    each = ", ".join(f"{rate:g}{_diverged([row for row in rows if row.get('lr') == rate])}" for rate in tried)
    at = sorted({(row["fraction"], row["lr"]) for row in _chosen(rows)})
    chosen = ", ".join(f"{rate:g} with {100 * fraction:.4g} %" for fraction, rate in at)
    at_an_end = len(tried) > 2 and bool({tried[0], tried[-1]} & {rate for _, rate in at})
    advice = "; one of them is at an end of those tried, so there may be better ones" if at_an_end else ""
    return f"; rates tried with the first seed: {each}, best on validation images: {chosen}{advice}"


def _diverged(rows: Sequence[Mapping[str, Any]]) -> str:
    """Said of a rate whose loss was not finite, and with which parts of the data, unless with all that are here."""
    parts = sorted({row["fraction"] for row in rows if row["test.top1"] is None})
    if not parts:
        return ""
    told = ", ".join(f"{100 * fraction:.4g} %" for fraction in parts)
    is_all = len(parts) == len({row["fraction"] for row in rows})
    return f" (loss not finite{'' if is_all else f' with {told}'})"


def _precisions(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line where runs have several, as where some were trained on another machine; early versions' rows have none."""
    found = Counter(row["precision"] for row in rows if row.get("precision"))
    if len(found) < 2:
        return []
    told = " and ".join(f"{count} in {precision}" for precision, count in found.most_common())
    return [f"- Not all runs have the same precision: {told}."]


def _of(rows: Iterable[Mapping[str, Any]], recipe: str, key: str) -> list[int]:
    return [row[key] for row in rows if row["recipe"] == recipe]


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _by_fraction(points: Iterable[Mapping[str, Any]], cell: Any) -> dict[float, str]:
    return {point["fraction"]: cell(point) for point in points}


def _accuracy(point: Mapping[str, Any]) -> str:
    return f"{point['mean']:.2%}"[:-1] + ("" if point["sd"] is None else f" ± {100 * point['sd']:.2f}")


def _difference(point: Mapping[str, Any]) -> str:
    interval = "" if point["low"] is None else f" [{100 * point['low']:+.2f}, {100 * point['high']:+.2f}]"
    return f"{100 * point['mean']:+.2f}{interval}".replace("-", "−")
