"""A comparison's pictures: which numbers are drawn, and where. Draws nothing itself (`vit.figures` does)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vit.data.images import Split
from vit.evaluation.comparison.judge import CONVENTIONS, Side
from vit.evaluation.comparison.tables import labels_of, titles_of
from vit.evaluation.metrics import sample_scores
from vit.evaluation.predictions import Predictions
from vit.figures.agreement import agreement
from vit.figures.calibration import Panel, calibration, equal_width_curve
from vit.figures.contact_sheet import COLUMNS, Picture, contact_sheet
from vit.figures.corruption_accuracy import corruption_accuracy
from vit.figures.intervals import Estimate, intervals
from vit.figures.style import save_figure

_MOST_CLASSES = 20
_MOST_PICTURES = COLUMNS
_THUMBNAIL = 160
_WNID = re.compile(r" \(n\d{8}\)$")
"""There is no room for it under a picture."""


def draw_pictures(result: dict[str, Any], sides: Sequence[Side], test: Split, folder: Path) -> dict[Path, str]:
    """Every picture with its numbers beside it, in `folder`; file → what it shows."""
    drawn = {
        folder / "accuracy.png": _accuracy(result, folder / "accuracy.png"),
        folder / "differences.png": _differences(result, folder / "differences.png"),
        folder / "agreement.png": _agreement(result, folder / "agreement.png"),
        folder / "calibration.png": _calibration(result, sides, folder / "calibration.png"),
    }
    for place, pair in enumerate(result["pairs"]):
        path = folder / f"classes_{place + 1}.png"
        if pair["first"] == result["models"][0]["name"]:
            words = _classes(_pair_label(result, pair), result["classes"][place], path)
            drawn |= {path: words} if words else {}
    drawn[folder / "only_right.png"] = _only_right(result, sides, test, folder / "only_right.png")
    if "corruptions" in result:
        drawn[folder / "corruptions.png"] = _corruptions(result, folder / "corruptions.png")
    return drawn


def _pair_label(result: dict[str, Any], pair: dict[str, Any]) -> str:
    labels = labels_of(result)
    return f"{labels[pair['first']]} − {labels[pair['second']]}"


def _save(estimates: list[Estimate], what: str, path: Path, conventions: str, *, signed: bool = False) -> None:
    numbers = {"estimates": [each._asdict() for each in estimates], "conventions": conventions}
    save_figure(intervals(estimates, what, signed=signed), path, numbers)


def _accuracy(result: dict[str, Any], path: Path) -> str:
    titles = titles_of(result)
    estimates = [Estimate(titles[each["name"]], each["top1"], *each["top1_interval"]) for each in result["models"]]
    _save(estimates, "top-1 accuracy", path, CONVENTIONS["interval"])
    return "Top-1 accuracy of each model with its 95 % interval (Wilson)."


def _differences(result: dict[str, Any], path: Path) -> str:
    estimates = [
        Estimate(_pair_label(result, pair), pair["top1_difference"], *pair["top1_interval"]) for pair in result["pairs"]
    ]
    _save(estimates, "difference of top-1, points", path, CONVENTIONS["difference"], signed=True)
    return "Differences of top-1 on the same images with 95 % intervals (paired bootstrap); pale: the interval holds 0."


def _agreement(result: dict[str, Any], path: Path) -> str:
    titles = {"same_answer": "same answer", "error_consistency": "error consistency"}
    matrices = {name: np.array(result["agreement"][key], dtype=np.float64) for key, name in titles.items()}
    names = list(labels_of(result).values())
    numbers = {**result["agreement"], "names": titles_of(result)}
    conventions = {key: CONVENTIONS[key] for key in ("agreement", "kappa")}
    save_figure(agreement(matrices, names), path, numbers | {"conventions": conventions})
    return "Share of images with the same answer, and agreement in being right beyond chance (kappa)."


def _calibration(result: dict[str, Any], sides: Sequence[Side], path: Path) -> str:
    panels, titles = [], titles_of(result)
    for model, side in zip(result["models"], sides, strict=True):
        temperature = model["calibration"].get("temperature")
        curves = [_curve(side.test, 1.0), None if temperature is None else _curve(side.test, temperature)]
        panels.append(Panel(titles[side.name], *curves))
    numbers = [
        {
            "name": panel.name,
            "before": panel.before._asdict(),
            "after": None if panel.after is None else panel.after._asdict(),
        }
        for panel in panels
    ]
    save_figure(calibration(panels), path, {"models": numbers, "conventions": CONVENTIONS["ece"]})
    return (
        "Accuracy against confidence in 15 bins of equal width, before and after the temperature; a dot grows with "
        "its images."
    )


def _curve(predictions: Predictions, temperature: float) -> Any:
    scores = sample_scores(replace(predictions, logits=predictions.logits / np.float32(temperature)))
    return equal_width_curve(scores.confidences, scores.ranks == 0)


def _classes(what: str, rows: Sequence[dict[str, Any]], path: Path) -> str:
    differing = [row for row in rows if row["difference"]]
    chosen = sorted(differing, key=lambda row: -abs(row["difference"]))[:_MOST_CLASSES]
    chosen.sort(key=lambda row: -row["difference"])
    if not chosen:
        return ""
    estimates = [
        Estimate(f"{row['class']} ({row['images']})", row["difference"], row["low"], row["high"]) for row in chosen
    ]
    _save(estimates, f"{what}, points", path, CONVENTIONS["classes"], signed=True)
    return f"Classes (images) on which {what} is largest, with 95 % intervals of one class each; pale: it holds 0."


def _only_right(result: dict[str, Any], sides: Sequence[Side], test: Split, path: Path) -> str:
    groups, labels, titles = {}, labels_of(result), titles_of(result)
    for name, rows in result["only_right"].items():
        shown = rows[:_MOST_PICTURES]
        groups[f"only {titles[name]} is right ({len(rows)})"] = [_picture(sides, labels, test, row) for row in shown]
    names = {
        name: [test.source.name(int(sides[0].test.indices[row])) for row in rows]
        for name, rows in result["only_right"].items()
    }
    save_figure(
        contact_sheet(groups, "no image"),
        path,
        {"images": names, "conventions": "images that one model alone gets right, in the data's order"},
    )
    return "Images that only one model gets right: the label above, the other models' answers below."


def _picture(sides: Sequence[Side], labels: dict[str, str], test: Split, row: int) -> Picture:
    first = sides[0].test
    image = test.source.read(int(first.indices[row]))
    image.thumbnail((_THUMBNAIL, _THUMBNAIL), Image.Resampling.BILINEAR)
    label = int(first.labels[row])
    answers = [int(side.test.logits[row].argmax()) for side in sides]
    names = [_WNID.sub("", name) for name in first.class_names]
    wrong = [f"{labels[side.name]}: {names[a]}" for side, a in zip(sides, answers, strict=True) if a != label]
    return Picture(np.asarray(image), names[label], "\n".join(wrong))


def _corruptions(result: dict[str, Any], path: Path) -> str:
    found = result["corruptions"]
    titles = titles_of(result)
    curves = {titles[name]: of_kind for name, of_kind in found["accuracy"].items()}
    figure = corruption_accuracy(curves, {titles[name]: clean for name, clean in found["clean"].items()})
    save_figure(figure, path, {**found, "conventions": found["conventions"]})
    return "Top-1 under the fifteen corruptions of ImageNet-C at five strengths; 0: the clean image at the same size."
