"""All numbers of a comparison, computed from several models' predictions for the same samples.

Logits are restricted to the data's classes beforehand; `vit.evaluation.metrics` decides which predictions are correct.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vit.comparison.agreement import agreement_rates, cohens_kappa, correct_in_one_model
from vit.comparison.calibration import TEMPERATURE_LIMITS, calibration_metrics, fit_temperature
from vit.comparison.classes import class_differences
from vit.evaluation.metrics import CONVENTIONS as METRICS
from vit.evaluation.metrics import SampleScores, sample_scores
from vit.evaluation.predictions import Predictions
from vit.evaluation.statistics import (
    Array,
    add_holm,
    discordance,
    mcnemar,
    percentile_interval,
    resampled_means,
    wilson_interval,
)

CONVENTIONS = {
    "top1": "the label has the largest logit among the data's classes; of equal logits the lower class ranks first",
    "top5": "the label is among the min(5, classes) largest logits",
    "interval": "95 %; of one accuracy: Wilson (1927)",
    "difference": "first − second, on the same images; interval: percentiles of a paired bootstrap (the images are "
    "drawn with replacement, the same draw for every model)",
    "p": "exact two-sided McNemar (1947) test of top-1: binomial on the images that one of the two alone gets right",
    "p_holm": "the same, adjusted for the number of pairs (Holm 1979)",
    **{name: METRICS[name] for name in ("nll", "brier", "ece_equal_mass")},
    "temperature": f"smallest NLL on validation images, within {TEMPERATURE_LIMITS}; never fitted on test images",
    "agreement": "fraction of images with the same prediction, right or wrong",
    "kappa": "Cohen's (1960) of the predictions; error consistency: of being right (Geirhos et al. 2020)",
    "classes": "interval of one class's difference: Agresti and Min (2005); about k/20 of k exclude 0 by chance",
}
_TOP_K = {"top1": 1, "top5": 5}


@dataclass(frozen=True)
class ModelPredictions:
    """One model's test and validation predictions; where there is no `validation`, `reason` says why."""

    name: str
    test: Predictions
    validation: Predictions | None = None
    reason: str = ""


@dataclass(frozen=True)
class Resampling:
    num_resamples: int = 10_000
    seed: int = 0


def comparison_metrics(models: Sequence[ModelPredictions], resampling: Resampling) -> dict[str, Any]:
    """Compute `models`, `pairs`, `agreement`, `classes` (a list for each pair), `only_right` (rows for each model)."""
    first = models[0].test
    for model in models:
        same = np.array_equal(model.test.indices, first.indices) and np.array_equal(model.test.labels, first.labels)
        assert same, f"{model.name} was evaluated on other images than {models[0].name}"
    scores = [sample_scores(model.test) for model in models]
    hits = np.stack([score.ranks == 0 for score in scores])  # models n
    predicted = np.stack([model.test.logits.argmax(axis=1) for model in models])  # models n
    return {
        "models": [_model_metrics(model, score) for model, score in zip(models, scores, strict=True)],
        "pairs": _pair_metrics(models, scores, resampling),
        "agreement": {
            "same_prediction": agreement_rates(predicted).tolist(),
            "kappa": _nan_to_none(cohens_kappa(predicted)),
            "error_consistency": _nan_to_none(cohens_kappa(hits.astype(np.int64))),
        },
        "classes": [_class_rows(first, hits[a], hits[b]) for a, b in combinations(range(len(models)), 2)],
        "only_right": {
            model.name: rows.tolist() for model, rows in zip(models, correct_in_one_model(hits), strict=True)
        },
    }


def _model_metrics(model: ModelPredictions, scores: SampleScores) -> dict[str, Any]:
    total = len(scores.ranks)
    result: dict[str, Any] = {"name": model.name, "n_seen": total, "n_total": model.test.num_total}
    for name, k in _TOP_K.items():
        hits = int((scores.ranks < k).sum())
        result |= {name: hits / total, f"{name}_interval": list(wilson_interval(hits, total))}
    result |= calibration_metrics(model.test)._asdict()
    if model.validation is None:
        return result | {"calibration": {"reason": model.reason}}
    temperature = fit_temperature(model.validation)
    result["calibration"] = {
        "temperature": temperature,
        "at_limit": temperature in TEMPERATURE_LIMITS,
        "n_validation": len(model.validation.labels),
        **calibration_metrics(model.test, temperature)._asdict(),
    }
    return result


def _pair_metrics(
    models: Sequence[ModelPredictions], scores: Sequence[SampleScores], resampling: Resampling
) -> list[dict[str, Any]]:
    """Compare every pair, with one set of bootstrap resamples for all of them."""
    columns = [
        {name: (score.ranks < k).astype(np.float64) for name, k in _TOP_K.items()}
        | {"nll": score.nll, "brier": score.brier}
        for score in scores
    ]
    names = list(columns[0])
    values = np.stack([column[name] for column in columns for name in names], axis=1)  # n (models·names)
    means = resampled_means(values, num_resamples=resampling.num_resamples, seed=resampling.seed)
    pairs = []
    for a, b in combinations(range(len(models)), 2):
        counts = discordance(scores[a].ranks == 0, scores[b].ranks == 0)
        pair: dict[str, Any] = {"first": models[a].name, "second": models[b].name, **counts._asdict()}
        for place, name in enumerate(names):
            one, other = a * len(names) + place, b * len(names) + place
            pair[f"{name}_difference"] = float((values[:, one] - values[:, other]).mean())
            pair[f"{name}_interval"] = list(percentile_interval(means[:, one] - means[:, other]))
        pairs.append(pair | {"p": mcnemar(counts.only_first, counts.only_second)})
    add_holm(pairs)
    return pairs


def _class_rows(test: Predictions, first: NDArray[np.bool_], second: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """Build one row for each class that has images, from two models' hits (n,)."""
    differences = class_differences(first, second, test.labels, len(test.class_names))
    keys = ("images", "first", "second", "difference", "low", "high")
    columns = zip(*(column.tolist() for column in differences), strict=True)
    rows = zip(test.class_names, columns, strict=True)
    return [{"class": name, **dict(zip(keys, values, strict=True))} for name, values in rows if values[0]]


def _nan_to_none(values: Array) -> list[Any]:
    """Convert to nested lists, with None for NaN, which JSON does not have."""
    return [[None if math.isnan(value) else value for value in row] for row in values.tolist()]
