"""Numbers of a comparison as tables and sentences, formatted alike for the terminal, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from string import ascii_uppercase
from typing import Any

FEW_IMAGES = 200
"""Below this, a fitted temperature is marked."""
_MAX_CLASSES = 10
_MAX_LABEL = 12
Row = list[str]


@dataclass(frozen=True)
class Table:
    title: str
    header: Row
    rows: list[Row]
    note: str = ""


def short_labels(result: dict[str, Any]) -> dict[str, str]:
    """Map models to their names, or to letters if a name is long, for places with little room."""
    names = [model["name"] for model in result["models"]]
    if max(map(len, names)) <= _MAX_LABEL:
        return {name: name for name in names}
    return {name: _letters(place) for place, name in enumerate(names)}


def _letters(place: int) -> str:
    """A to Z, then AA, AB and so on."""
    before, letter = divmod(place, len(ascii_uppercase))
    return (_letters(before - 1) if before else "") + ascii_uppercase[letter]


def titles(result: dict[str, Any]) -> dict[str, str]:
    """Map models to label and name, `A: vit_base_patch16_224`."""
    return {name: name if name == label else f"{label}: {name}" for name, label in short_labels(result).items()}


def pair_label(result: dict[str, Any], pair: dict[str, Any]) -> str:
    labels = short_labels(result)
    return f"{labels[pair['first']]} − {labels[pair['second']]}"


def largest_differences(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Choose the classes on which two models differ most, largest difference first."""
    return sorted((row for row in rows if row["difference"]), key=lambda row: -abs(row["difference"]))[:most]


def all_tables(result: dict[str, Any]) -> list[Table]:
    """Build every table that has rows, in reading order."""
    tables = [
        models_table(result),
        pairs_table(result),
        confounders_table(result),
        agreement_table(result),
        *classes_tables(result),
    ]
    if "corruptions" in result:
        tables.append(corruptions_table(result))
    return tables


def verdicts(result: dict[str, Any]) -> list[str]:
    """Write one sentence for each pair: which model is ahead, by how much, and whether that is significant."""
    return [
        verdict(pair, pair["top1_difference"], pair["top1_interval"], len(result["pairs"])) for pair in result["pairs"]
    ]


def verdict(
    pair: dict[str, Any],
    gap: float,
    interval: Sequence[float],
    num_pairs: int,
    where: str = "",
    test: str = "McNemar",
) -> str:
    """Write the sentence for one pair, `gap` being first − second; `where` follows the names (" in …")."""
    first, second = pair["first"], pair["second"]
    ahead, behind = (second, first) if gap < 0 else (first, second)
    low, high = sorted(-end if gap < 0 else end for end in interval)  # of `ahead` − `behind`
    p = f"p = {p_value(pair['p'])}".replace("= <", "< ")
    evidence = f"95 % interval {signed(100 * low, 1)} to {signed(100 * high, 1)}; {test} {p}"
    if pair["p_holm"] != pair["p"]:
        evidence += f", {p_value(pair['p_holm'])} adjusted for {num_pairs} pairs"
    if gap == 0:
        return f"{first} and {second} are level{where} ({evidence})."
    not_significant = "" if pair["p_holm"] < 0.05 else ": not significant on these images"
    return f"{ahead} is {100 * abs(gap):.1f} points ahead of {behind}{where} ({evidence}){not_significant}."


# ------------------------------------------------------------------ numbers


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"


def percent_with_interval(value: float, interval: Sequence[float]) -> str:
    """`81.03 % (80.2–81.8)`."""
    low, high = interval
    return f"{percent(value)} ({100 * low:.1f}–{100 * high:.1f})"


def p_value(value: float) -> str:
    """Format p; below the smallest float it is 0, and then only a bound is known."""
    if value == 0:
        return "<1e-300"
    return f"{value:.2g}" if value >= 1e-4 else f"{value:.0e}"


def _accuracy(model: dict[str, Any], key: str) -> str:
    low, high = model[f"{key}_interval"]
    return f"{percent(model[key])} ({100 * low:.1f}–{100 * high:.1f})"


def difference_text(values: tuple[float, float, float], digits: int, interval_digits: int) -> str:
    """Format (difference, low, high) as `+1.23 (−0.4 to +2.9)`."""
    difference, low, high = values
    interval = f"{signed(low, interval_digits)} to {signed(high, interval_digits)}"
    return f"{signed(difference, digits)} ({interval})"


def signed(value: float, digits: int) -> str:
    """Format with a sign, using a typographic minus; zero has no sign."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _temperature(model: dict[str, Any]) -> str:
    calibration = model["calibration"]
    if calibration.get("temperature") is None:
        return "–"
    count = calibration["n_validation"]
    few = ", few" if count < FEW_IMAGES else ""
    # at an end of the range: every image is right, say, and the best temperature would be 0
    value = "undetermined" if calibration["at_limit"] else f"{calibration['temperature']:.3f}"
    return f"{value} ({count} images{few})"


def _speed(model: dict[str, Any]) -> str:
    if "images_per_second" not in model:
        return "–"
    low, high = model["images_per_second_range"]
    return f"{model['images_per_second']:.1f} ({low:.1f}–{high:.1f})"


# ------------------------------------------------------------------ tables

_SOURCES = {"run": "stored by the run", "stored": "stored by an earlier comparison", "computed": "computed now"}
_ROWS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("top-1", lambda model: _accuracy(model, "top1")),
    ("top-5", lambda model: _accuracy(model, "top5")),
    ("top-1 among all classes of its head", lambda model: percent(model["unrestricted_top1"])),
    ("top-1 of ReaL labels", lambda model: percent(model.get("real_top1"))),
    ("NLL", lambda model: _number(model["nll"], 4)),
    ("Brier", lambda model: _number(model["brier"], 4)),
    ("ECE, equal mass", lambda model: _number(model["ece_equal_mass"], 4)),
    ("temperature, fitted on validation", _temperature),
    ("NLL with temperature", lambda model: _number(model["calibration"].get("nll"), 4)),
    ("Brier with temperature", lambda model: _number(model["calibration"].get("brier"), 4)),
    ("ECE, equal mass, with temperature", lambda model: _number(model["calibration"].get("ece_equal_mass"), 4)),
    ("top-1 under corruption", lambda model: percent(model.get("corrupted_top1"))),
    ("mCE (first model: 1)", lambda model: _number(model.get("mce"), 3)),
    ("parameters", lambda model: f"{model['params'] / 1e6:.3g} M"),
    ("multiply-adds per image", lambda model: f"{model['gmacs']:.4g} G"),
    ("images/s (slowest–fastest turn)", _speed),
    ("peak memory", lambda model: f"{model['peak_bytes'] / 2**20:.0f} MiB" if "peak_bytes" in model else "–"),
    ("images evaluated", lambda model: f"{model['n_seen']:,} of {model['n_total']:,}"),
    ("predictions", lambda model: _SOURCES[model["predictions"]]),
)


def models_table(result: dict[str, Any]) -> Table:
    models = result["models"]
    always_right = {"top-5"} if result["data"]["classes"] <= 5 else set()
    rows = [
        [title, *map(read, models)]
        for title, read in _ROWS
        if title not in always_right and any(read(model) != "–" for model in models)
    ]
    reasons = sorted({model["calibration"].get("reason") for model in models} - {None})
    notes = [f"Without a temperature: {'; '.join(reasons)}."] if reasons else []
    if any(model["calibration"].get("n_validation", FEW_IMAGES) < FEW_IMAGES for model in models):
        notes.append(f"A temperature fitted on fewer than {FEW_IMAGES} images changes much with their choice.")
    return Table("Models", ["", *titles(result).values()], rows, " ".join(notes))


def pairs_table(result: dict[str, Any]) -> Table:
    def difference(pair: dict[str, Any], key: str, scale: int, digits: int, interval_digits: int) -> str:
        difference, low, high = (scale * each for each in (pair[f"{key}_difference"], *pair[f"{key}_interval"]))
        return difference_text((difference, low, high), digits, interval_digits)

    header = ["first − second", "top-1, points", "only first | second right", "p (McNemar)", "p (Holm)", "NLL", "Brier"]
    rows = [
        [
            pair_label(result, pair),
            difference(pair, "top1", 100, 2, 1),
            f"{pair['only_first']} | {pair['only_second']}",
            p_value(pair["p"]),
            p_value(pair["p_holm"]),
            difference(pair, "nll", 1, 3, 3),
            difference(pair, "brier", 1, 3, 3),
        ]
        for pair in result["pairs"]
    ]
    return Table("Differences", header, rows, "Lower NLL and Brier are better. In brackets: 95 % intervals.")


def confounders_table(result: dict[str, Any]) -> Table:
    columns = [model["provenance"] for model in result["models"]]
    rows = [[title, *(column[title] for column in columns)] for title in columns[0]]
    return Table("Other differences between the models", ["", *titles(result).values()], rows)


def agreement_table(result: dict[str, Any]) -> Table:
    names = list(short_labels(result).values())
    matrices = [result["agreement"][key] for key in ("same_prediction", "kappa", "error_consistency")]
    rows = []
    for a, b in combinations(range(len(names)), 2):
        values = [matrix[a][b] for matrix in matrices]
        cells = ["not defined" if value is None else f"{value:.3f}".replace("-", "−") for value in values]
        rows.append([f"{names[a]} and {names[b]}", *cells])
    return Table("Agreement", ["", "same prediction", "Cohen's kappa", "error consistency"], rows)


def classes_tables(result: dict[str, Any]) -> list[Table]:
    """List, for the first model and each other one, the classes that differ most."""
    tables, labels = [], short_labels(result)
    for pair, rows in zip(result["pairs"], result["classes"], strict=True):
        chosen = largest_differences(rows, _MAX_CLASSES)
        if pair["first"] != result["models"][0]["name"] or not chosen:
            continue
        header = ["class", "images", labels[pair["first"]], labels[pair["second"]], "difference, points"]
        cells = [
            [
                row["class"],
                str(row["images"]),
                percent(row["first"]),
                percent(row["second"]),
                difference_text((100 * row["difference"], 100 * row["low"], 100 * row["high"]), 1, 1),
            ]
            for row in chosen
        ]
        num_differing = sum(row["difference"] != 0 for row in rows)
        note = f"The {len(cells)} largest of {num_differing} classes that differ, of {len(rows)}."
        tables.append(Table(f"Classes: {pair_label(result, pair)}", header, cells, note))
    return tables


def corruptions_table(result: dict[str, Any]) -> Table:
    models, names = result["corruptions"]["accuracy"], titles(result)
    kinds = list(next(iter(models.values())))
    rows = [
        [kind.replace("_", " "), *(percent(sum(curves[kind]) / len(curves[kind])) for curves in models.values())]
        for kind in kinds
    ]
    return Table("Corruptions", ["top-1, mean over severities", *(names[name] for name in models)], rows)


def summary(result: dict[str, Any]) -> str:
    """Write a few lines for a terminal: accuracies, verdicts, warnings."""
    width = max(len(model["name"]) for model in result["models"])
    lines = [f"{model['name']:<{width}}  top-1 {_accuracy(model, 'top1')}" for model in result["models"]]
    return "\n".join([*lines, *verdicts(result), *(f"not like for like: {line}" for line in result["warnings"])])
