"""From several models' answers on the same samples to every number of their comparison. No models, no images, no files.

Answers are restricted to the data's classes beforehand; what is a hit is decided by `metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vit.evaluation.comparison.agreement import kappas, only_right, same_answers
from vit.evaluation.comparison.calibration import LIMITS, fit_temperature, measure
from vit.evaluation.comparison.classes import class_differences
from vit.evaluation.comparison.statistics import (
    Array,
    discordance,
    holm,
    mcnemar,
    percentile_interval,
    resampled_means,
    wilson_interval,
)
from vit.evaluation.metrics import SampleScores, sample_scores
from vit.evaluation.predictions import Predictions

CONVENTIONS = {
    "top1": "the label has the largest logit among the data's classes; of equal logits the lower class ranks first",
    "top5": "the label is among the min(5, classes) largest logits",
    "interval": "95 %; of one share: Wilson (1927)",
    "difference": "first − second, of the same images; interval: percentiles of a paired bootstrap (the images are "
    "drawn with replacement, the same draw for every model)",
    "p": "exact two-sided McNemar (1947) test of top-1: binomial on the images that one of the two alone gets right",
    "p_holm": "the same, adjusted for the number of pairs (Holm 1979)",
    "nll": "mean of −log p(label), nats",
    "brier": "sum over classes of (p − one-hot)², mean over images, in [0, 2]",
    "ece": "top-1 probability, 15 bins of equal width (i/15, (i+1)/15], weighted by images, |accuracy − confidence|",
    "temperature": f"of the smallest NLL on validation images, within {LIMITS}; never fitted on test images",
    "agreement": "share of images with the same answer, right or wrong",
    "kappa": "Cohen's (1960) of the answers; error consistency: of being right (Geirhos et al. 2020)",
    "classes": "interval of one class's difference: Agresti and Min (2005); about k/20 of k exclude 0 by chance",
}


@dataclass(frozen=True)
class Side:
    """One model's answers; `validation` is None where there are none, and `reason` says why."""

    name: str
    test: Predictions
    validation: Predictions | None = None
    reason: str = ""


@dataclass(frozen=True)
class Resampling:
    num_resamples: int = 10_000
    seed: int = 0


def judge(sides: Sequence[Side], resampling: Resampling) -> dict[str, Any]:
    """`models`, `pairs`, `agreement`, `classes` (a list for each pair), `only_right` (rows of the answers)."""
    first = sides[0].test
    for side in sides:
        same = np.array_equal(side.test.indices, first.indices) and np.array_equal(side.test.labels, first.labels)
        assert same, f"{side.name} was asked about other images than {sides[0].name}"
    scores = [sample_scores(side.test) for side in sides]
    hits = np.stack([score.ranks == 0 for score in scores])  # models n
    answers = np.stack([side.test.logits.argmax(axis=1) for side in sides])  # models n
    return {
        "models": [_judge_one(side, score) for side, score in zip(sides, scores, strict=True)],
        "pairs": _judge_pairs(sides, scores, resampling),
        "agreement": _agreement(answers, hits),
        "classes": [_classes(first, hits[a], hits[b]) for a, b in _pairs(sides)],
        "only_right": {side.name: rows.tolist() for side, rows in zip(sides, only_right(hits), strict=True)},
    }


def _pairs(sides: Sequence[Side]) -> list[tuple[int, int]]:
    return list(combinations(range(len(sides)), 2))


def _judge_one(side: Side, scores: SampleScores) -> dict[str, Any]:
    total = len(scores.ranks)
    result: dict[str, Any] = {"name": side.name, "n_seen": total, "n_total": side.test.num_total}
    for name, least in (("top1", 1), ("top5", 5)):
        hits = int((scores.ranks < least).sum())
        result |= {name: hits / total, f"{name}_interval": list(wilson_interval(hits, total))}
    return result | measure(side.test)._asdict() | {"calibration": _calibration(side)}


def _calibration(side: Side) -> dict[str, Any]:
    """The temperature and what it makes of the test answers; or the reason why there is none."""
    if side.validation is None:
        return {"reason": side.reason}
    temperature = fit_temperature(side.validation)
    return {
        "temperature": temperature,
        "at_limit": temperature in LIMITS,
        "n_validation": len(side.validation.labels),
        **measure(side.test, temperature)._asdict(),
    }


# ------------------------------------------------------------------ pairs


def _judge_pairs(sides: Sequence[Side], scores: Sequence[SampleScores], resampling: Resampling) -> list[dict[str, Any]]:
    """Every pair's differences, from one set of resamples that all of them share."""
    columns = [_columns(score) for score in scores]
    names = list(columns[0])
    values = np.stack([column[name] for column in columns for name in names], axis=1)  # n (models·names)
    means = resampled_means(values, num_resamples=resampling.num_resamples, seed=resampling.seed)
    pairs = []
    for a, b in _pairs(sides):
        hits = scores[a].ranks == 0, scores[b].ranks == 0
        counts = discordance(*hits)
        pair: dict[str, Any] = {"first": sides[a].name, "second": sides[b].name, **counts._asdict()}
        for place, name in enumerate(names):
            one, other = a * len(names) + place, b * len(names) + place
            pair[f"{name}_difference"] = float((values[:, one] - values[:, other]).mean())
            pair[f"{name}_interval"] = list(percentile_interval(means[:, one] - means[:, other]))
        pairs.append(pair | {"p": mcnemar(counts.only_first, counts.only_second)})
    for pair, adjusted in zip(pairs, holm([pair["p"] for pair in pairs]), strict=True):
        pair["p_holm"] = adjusted
    return pairs


def _columns(scores: SampleScores) -> dict[str, Array]:
    """What each image contributes to the means that are compared."""
    hits = {name: (scores.ranks < least).astype(np.float64) for name, least in (("top1", 1), ("top5", 5))}
    return hits | {"nll": scores.nll, "brier": scores.brier}


def _agreement(answers: NDArray[np.int64], hits: NDArray[np.bool_]) -> dict[str, Any]:
    return {
        "same_answer": same_answers(answers).tolist(),
        "kappa": _plain(kappas(answers)),
        "error_consistency": _plain(kappas(hits.astype(np.int64))),
    }


def _plain(values: Array) -> list[Any]:
    """Nested lists, with None where a number is not defined."""
    return [[None if math.isnan(value) else value for value in row] for row in values.tolist()]


def _classes(asked: Predictions, first: NDArray[np.bool_], second: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """One row a class that has images, from two models' hits (n,)."""
    names = asked.class_names
    found = class_differences(first, second, asked.labels, len(names))
    keys = ("images", "first", "second", "difference", "low", "high")
    rows = zip(names, zip(*(column.tolist() for column in found), strict=True), strict=True)
    return [{"class": name, **dict(zip(keys, values, strict=True))} for name, values in rows if values[0]]
