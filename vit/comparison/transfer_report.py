"""The files of a comparison of frozen features: JSON, Markdown, figures with their numbers, one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vit.comparison.page import Page, page_html, page_markdown, page_title
from vit.comparison.report import keep_earlier_report
from vit.comparison.tables import (
    Table,
    confounders_table,
    difference_text,
    p_value,
    pair_label,
    percent,
    percent_with_interval,
    short_labels,
    titles,
    verdict,
)
from vit.figures.intervals import Estimate, plot_intervals
from vit.figures.style import save_figure
from vit.runs import write_json

Result = dict[str, Any]
PROBE = "linear_probe"
_PROTOCOLS = {"knn": "k-NN", "linear_probe": "linear probe"}


def write_transfer_report(result: Result, folder: Path) -> None:
    """Write transfer.{json,md,html} and figures/ to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    keep_earlier_report(folder, "transfer", result)
    write_json(folder / "transfer.json", result)
    figures = draw_figures(result, folder / "figures")
    page = transfer_page(result)
    links = {f"figures/{path.name}": caption for path, caption in figures.items()}
    (folder / "transfer.md").write_text(page_markdown(page, links), encoding="utf-8")
    (folder / "transfer.html").write_text(page_html(page, figures), encoding="utf-8")


def transfer_page(result: Result) -> Page:
    data = result["data"]
    about = (
        f"Frozen features of {data['training_images']:,} training and {data['images']:,} test images of "
        f"{data['name']}, {data['classes']} classes, the same for every model, each with its own preprocessing "
        f"(fingerprints {data['training_fingerprint']}, {data['fingerprint']}); {result['precision']}; "
        f"{result['resamples']:,} resamples, seed {result['seed']}."
    )
    tables = [cost_table(result)]
    for kind in result["features"]:
        tables += [accuracy_table(result, kind), pairs_table(result, kind)]
    tables.append(confounders_table(result))
    title = f"Frozen features: {page_title(result)}"
    return Page(
        title, about, transfer_verdicts(result), result["warnings"], tables, result["conventions"], result["versions"]
    )


def transfer_verdicts(result: Result) -> list[str]:
    """Write one sentence for each kind of features and pair of models, about the linear probe."""
    lines = []
    for kind, evaluated in result["features"].items():
        pairs = evaluated["pairs"][PROBE]
        where = f" in a linear probe of {kind}"
        lines += [verdict(pair, pair["difference"], pair["interval"], len(pairs), where) for pair in pairs]
    return lines


def summary(result: Result) -> str:
    """Write a few lines for a terminal: accuracies beside the cost, verdicts, warnings."""
    width = max(len(model["name"]) for model in result["models"])
    lines = []
    for kind, evaluated in result["features"].items():
        for model in result["models"]:
            found = (
                f"{protocol_name(protocol)} {percent(accuracies[model['name']]['accuracy'])}"
                for protocol, accuracies in evaluated["accuracies"].items()
            )
            lines.append(f"{model['name']:<{width}}  {kind}: {', '.join(found)}")
    lines += [
        f"{model['name']:<{width}}  {_millions(model)} parameters, {_gmacs(model)} multiply-adds, {_speed(model)}, "
        f"trained on {model['pretraining_data']}"
        for model in result["models"]
    ]
    warnings = (f"not like for like: {line}" for line in result["warnings"])
    return "\n".join([*lines, *transfer_verdicts(result), *warnings])


def protocol_name(protocol: str) -> str:
    shots = protocol.removeprefix("few_shot_")
    return _PROTOCOLS.get(protocol, f"{shots} image{'s' * (shots != '1')} a class")


# ------------------------------------------------------------------ tables


def cost_table(result: Result) -> Table:
    models = result["models"]
    rows = [
        ["parameters", *map(_millions, models)],
        ["multiply-adds per image", *map(_gmacs, models)],
        ["speed of the features", *map(_speed, models)],
        ["trained on", *(model["pretraining_data"] for model in models)],
    ]
    return Table("Cost", ["", *titles(result).values()], rows)


def accuracy_table(result: Result, kind: str) -> Table:
    evaluated = result["features"][kind]
    rows = []
    for protocol, accuracies in evaluated["accuracies"].items():
        cells = [percent_with_interval(found["accuracy"], found["interval"]) for found in accuracies.values()]
        rows.append([protocol_name(protocol), *cells])
    rows.append(["numbers in a feature", *map(str, evaluated["widths"].values())])
    others = [f"{name}: {read}" for name, read in evaluated["read"].items() if read != kind]
    note = f"Pooled maps stand for these features ({'; '.join(others)})." if others else ""
    return Table(f"Accuracy: {kind}", ["", *titles(result).values()], rows, note)


def pairs_table(result: Result, kind: str) -> Table:
    header = ["first − second", "protocol", "points", "only first | second right", "p (McNemar)", "p (Holm)"]
    rows = []
    for protocol, pairs in result["features"][kind]["pairs"].items():
        for pair in pairs:
            low, high = pair["interval"]
            points = difference_text((100 * pair["difference"], 100 * low, 100 * high), 2, 1)
            tested = "p" in pair
            counts = f"{pair['only_first']} | {pair['only_second']}" if tested else "–"
            tests = [p_value(pair["p"]), p_value(pair["p_holm"])] if tested else ["–", "–"]
            rows.append([pair_label(result, pair), protocol_name(protocol), points, counts, *tests])
    return Table(f"Differences: {kind}", header, rows, "In brackets: 95 % intervals.")


def _millions(model: dict[str, Any]) -> str:
    return f"{model['params'] / 1e6:.3g} M"


def _gmacs(model: dict[str, Any]) -> str:
    return f"{model['gmacs']:.4g} G"


def _speed(model: dict[str, Any]) -> str:
    return f"{model['images_per_second']:.1f} images/s"


# ------------------------------------------------------------------ figures


def draw_figures(result: Result, folder: Path) -> dict[Path, str]:
    """Draw accuracies and differences of each kind of features; returns PNG file → caption."""
    captions, names, labels = {}, titles(result), short_labels(result)
    for kind, evaluated in result["features"].items():
        accuracies = [
            Estimate(f"{protocol_name(protocol)}, {names[name]}", found["accuracy"], *found["interval"])
            for protocol, models in evaluated["accuracies"].items()
            for name, found in models.items()
        ]
        path = folder / f"accuracy_{kind}.png"
        save_figure(plot_intervals(accuracies, f"accuracy from {kind}"), path, _numbers(accuracies, result))
        captions[path] = (
            f"Accuracies from {kind} with their 95 % intervals. Where the classes lie apart in the "
            "features, k-NN comes close to the linear probe (Caron et al. 2021)."
        )
        differences = [
            Estimate(
                f"{protocol_name(protocol)}, {labels[pair['first']]} − {labels[pair['second']]}",
                pair["difference"],
                *pair["interval"],
            )
            for protocol, pairs in evaluated["pairs"].items()
            for pair in pairs
        ]
        path = folder / f"differences_{kind}.png"
        figure = plot_intervals(differences, f"difference of accuracy from {kind}, points", signed=True)
        save_figure(figure, path, _numbers(differences, result))
        captions[path] = (
            f"Differences from {kind} on the same images with 95 % intervals. Blue: the first model is ahead; "
            "orange: the second; pale: the interval holds 0."
        )
    return captions


def _numbers(estimates: list[Estimate], result: Result) -> Result:
    conventions = {name: result["conventions"][name] for name in ("interval", "difference")}
    return {"estimates": [each._asdict() for each in estimates], "conventions": conventions}
