"""A multi-label classifier's predictions, and the numbers computed from them.

Decisions are taken at one threshold a class, the one with the best F1 on the validation images. Average precision and
the decisions themselves are in `vit.evaluation.multilabel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score, precision_recall_curve

from vit.evaluation import multilabel
from vit.runs import replace_atomically

CONVENTIONS = {
    "map": "mean over classes of average precision; classes that no image has are left out",
    "average_precision": "sum over recall's steps of precision, not interpolated; None: no image has the class",
    "thresholds": "by class, of the probability; best F1 on the validation images; 0.5 where none has the class",
    "f1": "at the thresholds; macro: mean over all classes; micro: of all decisions together",
}


@dataclass(frozen=True, eq=False)
class LabelPredictions:
    """Logits float32 (n, k) and labels uint8 (n, k) of every image seen, with the thresholds (k,) for decisions."""

    indices: NDArray[np.int64]
    labels: NDArray[np.uint8]
    logits: NDArray[np.float32]
    class_names: list[str]
    thresholds: NDArray[np.float64]
    num_total: int
    num_broken: int
    fingerprint: str = ""

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """(n, k)"""
        return multilabel.probabilities(self.logits)

    def of_images(self, indices: Sequence[int]) -> LabelPredictions:
        """Those for some of the images."""
        rows = np.isin(self.indices, indices)
        return replace(self, indices=self.indices[rows], labels=self.labels[rows], logits=self.logits[rows])

    def save(self, path: Path) -> None:
        """Write the `.npz` file; a file of that name is replaced only once the new one is complete."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path) as unfinished, unfinished.open("wb") as file:
            np.savez_compressed(file, **{**vars(self), "class_names": np.array(self.class_names, dtype=np.str_)})


def average_precisions(predictions: LabelPredictions) -> list[float | None]:
    """Average precision of each class; None for a class that no image has."""
    return multilabel.average_precisions(predictions.labels, predictions.probabilities)


def best_thresholds(predictions: LabelPredictions) -> NDArray[np.float64]:
    """(k,) each class's threshold with the best F1 on these images, the lowest of equal ones.

    It lies in the middle between two probabilities of these images, so that rounding does not decide about one of them.
    """
    chosen = np.full(len(predictions.class_names), 0.5)
    for place, (labels, scores) in enumerate(zip(predictions.labels.T, predictions.probabilities.T, strict=True)):
        if labels.any():
            precision, recall, thresholds = precision_recall_curve(labels, scores)
            f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
            best = int(f1[:-1].argmax())
            below = thresholds[best - 1] if best else 0.0
            chosen[place] = (below + thresholds[best]) / 2
    return chosen


def ranking_metrics(predictions: LabelPredictions) -> dict[str, float]:
    """`map` and `n_seen`, `n_total`, `n_broken`. ValueError: nothing was seen, or no image has a label."""
    found = multilabel.mean_average_precision(average_precisions(predictions))
    if found is None:
        raise ValueError(f"no image with a label was seen of {predictions.num_total} images")
    return {
        "map": found,
        "n_seen": len(predictions.labels),
        "n_total": predictions.num_total,
        "n_broken": predictions.num_broken,
    }


def decision_metrics(predictions: LabelPredictions) -> dict[str, float]:
    """`f1_macro` and `f1_micro` at the thresholds."""
    return {name: float(f1(predictions, name)) for name in ("f1_macro", "f1_micro")}


def f1(predictions: LabelPredictions, name: str) -> float:
    if name == "f1_macro":
        return float(np.mean(_f1_by_class(predictions)))
    return float(f1_score(predictions.labels.ravel(), _decisions(predictions).ravel(), zero_division=0))


def _f1_by_class(predictions: LabelPredictions) -> list[float]:
    """(k,) One class at a time: of an array with one column, scikit-learn takes both of its values for classes."""
    columns = zip(predictions.labels.T, _decisions(predictions).T, strict=True)
    return [float(f1_score(labels, decisions, zero_division=0)) for labels, decisions in columns]


def metrics_by_class(predictions: LabelPredictions) -> dict[str, dict[str, float | None]]:
    """Class name → average_precision, f1, threshold, images."""
    counts = predictions.labels.sum(axis=0, dtype=np.int64)
    measured = average_precisions(predictions), _f1_by_class(predictions)
    columns = zip(*measured, predictions.thresholds, counts, strict=True)
    return {
        name: {"average_precision": precision, "f1": one, "threshold": float(at), "images": int(count)}
        for name, (precision, one, at, count) in zip(predictions.class_names, columns, strict=True)
    }


def _decisions(predictions: LabelPredictions) -> NDArray[np.bool_]:
    return multilabel.label_sets(predictions.logits, predictions.thresholds)
