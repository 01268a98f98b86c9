"""Figures of a comparison, drawn by `vit.figures` and saved with their numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vit.comparison.calibration import scale_logits
from vit.comparison.compare import Comparison
from vit.comparison.metrics import CONVENTIONS
from vit.comparison.tables import largest_differences, pair_label, short_labels, titles
from vit.data.decoding import thumbnail
from vit.evaluation.examples import across_classes
from vit.evaluation.metrics import NUM_BINS, calibration_curve, sample_scores
from vit.evaluation.predictions import Predictions
from vit.figures.agreement import plot_agreement
from vit.figures.calibration import Curve, Panel, plot_calibration
from vit.figures.contact_sheet import COLUMNS, CaptionedImage, plot_contact_sheet
from vit.figures.corruption_accuracy import plot_corruption_accuracy
from vit.figures.intervals import Estimate, plot_intervals
from vit.figures.style import save_figure

_MAX_CLASSES = 20
_THUMBNAIL = 160
_WNID = re.compile(r" \(n\d{8}\)$")
"""Removed from class names, because there is no room for it under a small image."""


def draw_figures(comparison: Comparison, folder: Path) -> dict[Path, str]:
    """Draw every figure into `folder`, with its numbers beside it; returns PNG file → caption."""
    result = comparison.result
    captions = {
        path: draw(comparison, path)
        for path, draw in (
            (folder / "accuracy.png", _draw_accuracy),
            (folder / "differences.png", _draw_differences),
            (folder / "agreement.png", _draw_agreement),
            (folder / "calibration.png", _draw_calibration),
        )
    }
    for place, (pair, rows) in enumerate(zip(result["pairs"], result["classes"], strict=True)):
        chosen = largest_differences(rows, _MAX_CLASSES)
        if pair["first"] == result["models"][0]["name"] and chosen:
            path = folder / f"classes_{place + 1}.png"
            captions[path] = _draw_classes(pair_label(result, pair), chosen, path)
    captions[folder / "only_right.png"] = _draw_only_right(comparison, folder / "only_right.png")
    if "corruptions" in result:
        captions[folder / "corruptions.png"] = _draw_corruptions(comparison, folder / "corruptions.png")
    return captions


def _save(estimates: list[Estimate], title: str, path: Path, conventions: str, *, signed: bool = False) -> None:
    numbers = {"estimates": [each._asdict() for each in estimates], "conventions": conventions}
    save_figure(plot_intervals(estimates, title, signed=signed), path, numbers)


def _draw_accuracy(comparison: Comparison, path: Path) -> str:
    names = titles(comparison.result)
    estimates = [
        Estimate(names[model["name"]], model["top1"], *model["top1_interval"]) for model in comparison.result["models"]
    ]
    _save(estimates, "top-1 accuracy", path, CONVENTIONS["interval"])
    return (
        "Top-1 accuracy of each model with its 95 % interval (Wilson). Models may differ although their intervals "
        "overlap: the differences on the same images decide."
    )


def _draw_differences(comparison: Comparison, path: Path) -> str:
    result = comparison.result
    estimates = [
        Estimate(pair_label(result, pair), pair["top1_difference"], *pair["top1_interval"]) for pair in result["pairs"]
    ]
    _save(estimates, "difference of top-1, points", path, CONVENTIONS["difference"], signed=True)
    return (
        "Differences of top-1 on the same images with 95 % intervals (paired bootstrap). Blue: the first model is "
        "ahead; orange: the second; pale: the interval holds 0, so the images do not say which."
    )


def _draw_agreement(comparison: Comparison, path: Path) -> str:
    result = comparison.result
    panels = {"same_prediction": "same prediction", "error_consistency": "error consistency"}
    matrices = {title: np.array(result["agreement"][key], dtype=np.float64) for key, title in panels.items()}
    conventions = {key: CONVENTIONS[key] for key in ("agreement", "kappa")}
    numbers = {**result["agreement"], "names": titles(result), "conventions": conventions}
    save_figure(plot_agreement(matrices, list(short_labels(result).values())), path, numbers)
    return (
        "Fraction of images with the same prediction, and agreement in being right beyond chance (kappa). Models that "
        "see alike have a kappa near 1; 0 is what two unrelated models of these accuracies have (Geirhos et al. 2020)."
    )


def _draw_calibration(comparison: Comparison, path: Path) -> str:
    panels, names = [], titles(comparison.result)
    for row, model in zip(comparison.result["models"], comparison.predictions, strict=True):
        temperature = row["calibration"].get("temperature")
        after = None if temperature is None else _curve(scale_logits(model.test, temperature))
        panels.append(Panel(names[model.name], _curve(model.test), after))
    numbers = [
        {
            "name": panel.name,
            "before": panel.before._asdict(),
            "after": None if panel.after is None else panel.after._asdict(),
        }
        for panel in panels
    ]
    save_figure(plot_calibration(panels), path, {"models": numbers, "conventions": CONVENTIONS["ece_equal_mass"]})
    return (
        f"Accuracy against confidence in {NUM_BINS} bins of equal mass, before and after temperature scaling. A "
        "calibrated model lies on the dashed line, one that is too sure of itself below it; ViTs tend to be better "
        "calibrated than convolutional networks of like accuracy (Minderer et al. 2021)."
    )


def _curve(predictions: Predictions) -> Curve:
    scores = sample_scores(predictions)
    return Curve(*calibration_curve(scores.confidences, scores.ranks == 0))


def _draw_classes(pair: str, rows: list[dict[str, Any]], path: Path) -> str:
    estimates = [
        Estimate(f"{row['class']} ({row['images']})", row["difference"], row["low"], row["high"])
        for row in sorted(rows, key=lambda row: -row["difference"])
    ]
    _save(estimates, f"{pair}, points", path, CONVENTIONS["classes"], signed=True)
    return (
        f"Classes (images) on which {pair} is largest, with 95 % intervals of one class each; blue: above 0, orange: "
        "below, pale: the interval holds 0. Of twenty classes without any difference, one leaves it out by chance."
    )


def _draw_only_right(comparison: Comparison, path: Path) -> str:
    result, source = comparison.result, comparison.test.source
    names, test = titles(result), comparison.predictions[0].test
    labels, indices = test.labels.tolist(), test.indices
    groups = {
        f"only {names[name]} is right ({len(rows)})": _pictures(comparison, across_classes(rows, labels, COLUMNS))
        for name, rows in result["only_right"].items()
    }
    numbers = {
        "images": {
            name: [source.name(int(indices[row])) for row in rows] for name, rows in result["only_right"].items()
        },
        "conventions": "images that one model alone gets right, in the data's order; the pictures: the first of every "
        "class, then the second",
    }
    save_figure(plot_contact_sheet(groups, "no image"), path, numbers)
    return "Images that only one model gets right: the label above, the other models' predictions below."


def _pictures(comparison: Comparison, rows: Sequence[int]) -> list[CaptionedImage]:
    labels, test = short_labels(comparison.result), comparison.predictions[0].test
    names = [_WNID.sub("", name) for name in test.class_names]
    pictures = []
    for row in rows:
        image = thumbnail(comparison.test.source.read(int(test.indices[row])), _THUMBNAIL)
        predicted = {model.name: int(model.test.logits[row].argmax()) for model in comparison.predictions}
        label = int(test.labels[row])
        wrong = [f"{labels[name]}: {names[number]}" for name, number in predicted.items() if number != label]
        pictures.append(CaptionedImage(image, names[label], "\n".join(wrong)))
    return pictures


def _draw_corruptions(comparison: Comparison, path: Path) -> str:
    corruptions, names = comparison.result["corruptions"], titles(comparison.result)

    def by_title(values: Mapping[str, Any]) -> dict[str, Any]:
        return {names[name]: value for name, value in values.items()}

    figure = plot_corruption_accuracy(by_title(corruptions["accuracy"]), by_title(corruptions["clean"]))
    save_figure(figure, path, corruptions)
    return (
        "Top-1 under the fifteen corruptions of ImageNet-C at five severities; 0: the clean image at the same size. A "
        "robust model falls slowly; a ViT that was pre-trained on enough images falls no faster than a ResNet "
        "(Bhojanapalli et al. 2021)."
    )
