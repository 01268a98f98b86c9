"""A comparison's numbers as tables of words, the same for Markdown and for the page. Knows neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from string import ascii_uppercase
from typing import Any

_MOST_CLASSES = 10
_SHORT = 12
Row = list[str]


@dataclass(frozen=True)
class Table:
    title: str
    header: Row
    rows: list[Row]
    note: str = ""


def labels_of(result: dict[str, Any]) -> dict[str, str]:
    """Model → what it is called where there is little room: its name, or a letter where a name is long."""
    names = [model["name"] for model in result["models"]]
    short = max(map(len, names)) <= _SHORT
    return dict(zip(names, names if short else ascii_uppercase, strict=False))


def titles_of(result: dict[str, Any]) -> dict[str, str]:
    """Model → its label and its name."""
    return {name: name if name == label else f"{label}: {name}" for name, label in labels_of(result).items()}


def all_tables(result: dict[str, Any]) -> list[Table]:
    """Those that have rows, in the order of reading."""
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
    """One sentence a pair: who is ahead, by how much, and whether these images can tell."""
    lines = []
    for pair in result["pairs"]:
        first, second, gap = pair["first"], pair["second"], pair["top1_difference"]
        ahead, behind = (second, first) if gap < 0 else (first, second)
        low, high = sorted(_in_favour(gap, end) for end in pair["top1_interval"])
        said = f"95 % interval {_signed(100 * low, 1)} to {_signed(100 * high, 1)}; McNemar p = {p_value(pair['p'])}"
        if pair["p_holm"] != pair["p"]:
            said += f", {p_value(pair['p_holm'])} adjusted for {len(result['pairs'])} pairs"
        if gap == 0:
            lines.append(f"{first} and {second} are level ({said}).")
            continue
        told = "" if pair["p_holm"] < 0.05 else ": these images do not tell them apart"
        lines.append(f"{ahead} is {100 * abs(gap):.1f} points ahead of {behind} ({said}){told}.")
    return lines


def _in_favour(gap: float, end: float) -> float:
    """An interval's end, counted in favour of who is ahead."""
    return -end if gap < 0 else end


# ------------------------------------------------------------------ words


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"


def p_value(value: float) -> str:
    return f"{value:.2g}" if value >= 1e-4 else f"{value:.0e}"


def _share(model: dict[str, Any], key: str) -> str:
    low, high = model[f"{key}_interval"]
    return f"{percent(model[key])} ({100 * low:.1f}–{100 * high:.1f})"


def _points(pair: dict[str, Any], key: str) -> str:
    low, high = pair[f"{key}_interval"]
    return f"{_signed(100 * pair[f'{key}_difference'], 2)} ({_signed(100 * low, 1)} to {_signed(100 * high, 1)})"


def _gap(pair: dict[str, Any], key: str) -> str:
    low, high = pair[f"{key}_interval"]
    return f"{_signed(pair[f'{key}_difference'], 3)} ({_signed(low, 3)} to {_signed(high, 3)})"


def _signed(value: float, digits: int) -> str:
    """With its sign, a minus as typesetters draw it; what rounds to zero has none."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


# ------------------------------------------------------------------ tables


def models_table(result: dict[str, Any]) -> Table:
    models = result["models"]
    rows = [[title, *map(read, models)] for title, read in _MEASURES if any(read(model) != "–" for model in models)]
    reasons = sorted({_calibrated(model, "reason") for model in models} - {None})
    note = f"Without a temperature: {'; '.join(reasons)}." if reasons else ""
    return Table("Models", ["", *titles_of(result).values()], rows, note)


def _calibrated(model: dict[str, Any], key: str) -> Any:
    return model["calibration"].get(key)


def _number(key: str, shown: str) -> Callable[[dict[str, Any]], str]:
    return lambda model: "–" if model.get(key) is None else format(model[key], shown)


def _with_temperature(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda model: "–" if _calibrated(model, key) is None else f"{_calibrated(model, key):.4f}"


def _temperature(model: dict[str, Any]) -> str:
    if _calibrated(model, "temperature") is None:
        return "–"
    limit = ", at its limit" if _calibrated(model, "at_limit") else ""
    return f"{_calibrated(model, 'temperature'):.3f} ({_calibrated(model, 'n_validation')} images{limit})"


def _speed(model: dict[str, Any]) -> str:
    if "images_per_second" not in model:
        return "–"
    low, high = model["images_per_second_range"]
    return f"{model['images_per_second']:.1f} ({low:.1f}–{high:.1f})"


_ANSWERS = {"run": "stored by the run", "stored": "stored by an earlier comparison", "asked": "asked now"}
_MEASURES: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("top-1", lambda model: _share(model, "top1")),
    ("top-5", lambda model: _share(model, "top5")),
    ("top-1 among all classes of its head", lambda model: percent(model["unrestricted_top1"])),
    ("top-1 of ReaL labels", lambda model: percent(model.get("real_top1"))),
    ("NLL", _number("nll", ".4f")),
    ("Brier", _number("brier", ".4f")),
    ("ECE", _number("ece", ".4f")),
    ("temperature, fitted on validation", _temperature),
    ("NLL with temperature", _with_temperature("nll")),
    ("Brier with temperature", _with_temperature("brier")),
    ("ECE with temperature", _with_temperature("ece")),
    ("top-1 under corruption", lambda model: percent(model.get("corrupted_top1"))),
    ("mCE (first model: 1)", _number("mce", ".3f")),
    ("parameters", lambda model: f"{model['params'] / 1e6:.3g} M"),
    ("multiply-adds an image", lambda model: f"{model['gmacs']:.4g} G"),
    ("images/s (slowest–fastest turn)", _speed),
    ("peak memory", lambda model: f"{model['peak_bytes'] / 2**20:.0f} MiB" if "peak_bytes" in model else "–"),
    ("images judged", lambda model: f"{model['n_seen']:,} of {model['n_total']:,}"),
    ("answers", lambda model: _ANSWERS[model["answers"]]),
)


def pairs_table(result: dict[str, Any]) -> Table:
    labels = labels_of(result)
    header = ["first − second", "top-1, points", "only first | second right", "p (McNemar)", "p (Holm)", "NLL", "Brier"]
    rows = [
        [
            f"{labels[pair['first']]} − {labels[pair['second']]}",
            _points(pair, "top1"),
            f"{pair['only_first']} | {pair['only_second']}",
            p_value(pair["p"]),
            p_value(pair["p_holm"]),
            _gap(pair, "nll"),
            _gap(pair, "brier"),
        ]
        for pair in result["pairs"]
    ]
    return Table("Differences", header, rows, "Of NLL and Brier less is better. In brackets: 95 % intervals.")


def confounders_table(result: dict[str, Any]) -> Table:
    facts = [model["provenance"] for model in result["models"]]
    rows = [[fact, *(of_model[fact] for of_model in facts)] for fact in facts[0]]
    return Table("What else sets them apart", ["", *titles_of(result).values()], rows)


def agreement_table(result: dict[str, Any]) -> Table:
    names = list(labels_of(result).values())
    kinds = ("same_answer", "kappa", "error_consistency")
    rows = [
        [f"{names[a]} and {names[b]}", *(_cell(result["agreement"][kind][a][b]) for kind in kinds)]
        for a, b in combinations(range(len(names)), 2)
    ]
    return Table("Agreement", ["", "same answer", "Cohen's kappa", "error consistency"], rows)


def _cell(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.3f}".replace("-", "−")


def classes_tables(result: dict[str, Any]) -> list[Table]:
    """For the first model and each other one the classes that differ most."""
    tables, labels = [], labels_of(result)
    for pair, rows in zip(result["pairs"], result["classes"], strict=True):
        if pair["first"] != result["models"][0]["name"]:
            continue
        first, second = labels[pair["first"]], labels[pair["second"]]
        differing = [row for row in rows if row["difference"]]
        chosen = sorted(differing, key=lambda row: -abs(row["difference"]))[:_MOST_CLASSES]
        cells = [
            [
                row["class"],
                str(row["images"]),
                percent(row["first"]),
                percent(row["second"]),
                f"{_signed(100 * row['difference'], 1)} ({_signed(100 * row['low'], 1)} to "
                f"{_signed(100 * row['high'], 1)})",
            ]
            for row in chosen
        ]
        if cells:
            note = f"The {len(cells)} largest of {len(differing)} classes that differ, of {len(rows)}."
            header = ["class", "images", first, second, "difference, points"]
            tables.append(Table(f"Classes: {first} − {second}", header, cells, note))
    return tables


def corruptions_table(result: dict[str, Any]) -> Table:
    models, titles = result["corruptions"]["accuracy"], titles_of(result)
    kinds = list(next(iter(models.values())))
    rows = [
        [kind.replace("_", " "), *(percent(sum(found[kind]) / len(found[kind])) for found in models.values())]
        for kind in kinds
    ]
    return Table("Corruptions", ["top-1, mean over strengths", *(titles[name] for name in models)], rows)


def summary(result: dict[str, Any]) -> str:
    """A few lines for a terminal: accuracies, verdicts, warnings."""
    width = max(len(model["name"]) for model in result["models"])
    lines = [f"{model['name']:<{width}}  top-1 {_share(model, 'top1')}" for model in result["models"]]
    return "\n".join([*lines, *verdicts(result), *(f"not like for like: {line}" for line in result["warnings"])])
