"""`vit compare --transfer`: several models' frozen features, evaluated on the same images by the same protocols.

No head takes part, so that any model can be compared on any data. Features and predictions are stored, and a stopped
comparison continues (`vit.evaluation.feature_store`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from itertools import combinations
from typing import Any

import numpy as np

from vit.comparison.confounders import confounders, provenance_warnings
from vit.comparison.leaks import check_unseen, row_of
from vit.comparison.metrics import CONVENTIONS as METRICS
from vit.comparison.metrics import Resampling
from vit.comparison.request import ComparisonRequest, data_facts
from vit.data.file_source import check_outside
from vit.data.images import fingerprint
from vit.engine import make_accelerator, precision_of
from vit.evaluation.frozen_features import FEATURES, resolve_features
from vit.evaluation.seen_images import warnings_of
from vit.evaluation.statistics import (
    Array,
    add_holm,
    discordance,
    mcnemar,
    percentile_interval,
    resampled_means,
    wilson_interval,
)
from vit.evaluation.transfer_evaluation import CONVENTIONS as TRANSFER
from vit.evaluation.transfer_evaluation import (
    KindEvaluation,
    TransferOptions,
    evaluate_features,
    open_transfer_data,
    warnings_of_copies,
)
from vit.versions import computing_versions

CONVENTIONS = {
    **TRANSFER,
    "interval": "95 %; of one accuracy: Wilson (1927), or for a mean of seeds percentiles of a bootstrap of the test "
    "images; the choice of training images is not in it",
    "difference": METRICS["difference"],
    "p": f"{METRICS['p']}; not for a mean of seeds",
    "p_holm": "the same, adjusted for the pairs of one protocol on one kind of features (Holm 1979)",
}


@dataclass(frozen=True, kw_only=True)
class TransferRequest(ComparisonRequest):
    """The models, the images, the protocols and the kinds of features."""

    transfer: TransferOptions = field(default_factory=TransferOptions)


def compare_features(request: TransferRequest) -> dict[str, Any]:
    """Evaluate every model's features and compare the predictions; all numbers, ready for JSON.

    ValueError, before anything is computed, for a model that lacks a kind of features and for too few images.
    """
    request.check_models()
    accelerator = make_accelerator(request.device, request.precision)
    data = open_transfer_data(request.data, request.transfer)
    check_outside("--output_dir", request.output_dir, data.test.source)
    models = request.open_models()
    for model in models:
        resolve_features(model, request.transfer.features)
        model.check_device(accelerator.device)
        _ = model.preprocessing
    seen = check_unseen(models, request.data, data.test, request.leaky)
    evaluated = [evaluate_features(model, data, request.transfer, request.output_dir, accelerator) for model in models]
    return {
        "data": data_facts(request.data, data.test)
        | {"training_images": len(data.train), "training_fingerprint": fingerprint(data.train)},
        "resamples": request.resampling.num_resamples,
        "seed": request.resampling.seed,
        "conventions": CONVENTIONS | {kind: FEATURES[kind] for kind in request.transfer.features},
        "versions": computing_versions(),
        "precision": precision_of(accelerator),
        "models": [
            {
                "name": model.name,
                "source": model.source,
                "identity": model.identity,
                **each.cost,
                "provenance": confounders(model) | row_of(model, seen),
            }
            for model, each in zip(models, evaluated, strict=True)
        ],
        "features": {
            kind: compare_kind(
                {model.name: each.features[kind] for model, each in zip(models, evaluated, strict=True)},
                request.resampling,
            )
            for kind in request.transfer.features
        },
        "seen_images": [asdict(each) for each in seen],
        "warnings": [
            *warnings_of(seen),
            *warnings_of_copies(data),
            *provenance_warnings(models),
            *dict.fromkeys(line for each in evaluated for line in each.warnings()),
        ],
    }


def compare_kind(models: Mapping[str, KindEvaluation], resampling: Resampling) -> dict[str, Any]:
    """Compare several models' predictions from one kind of features: `accuracies` and `pairs` by protocol.

    Images that one of the models could not read are left out for all.
    """
    common = reduce(np.intersect1d, (each.indices.numpy() for each in models.values()))
    rows = [np.isin(each.indices.numpy(), common) for each in models.values()]
    first = next(iter(models.values()))
    labels = first.labels[rows[0]]
    hits = {
        protocol: np.stack(
            [
                (each.predicted[protocol][:, kept] == labels).mean(axis=0)
                for each, kept in zip(models.values(), rows, strict=True)
            ],
            axis=1,
        )
        for protocol in first.predicted
    }  # m models
    draws = {protocol: len(first.predicted[protocol]) for protocol in hits}
    stacked = np.concatenate(list(hits.values()), axis=1)
    means = resampled_means(stacked, num_resamples=resampling.num_resamples, seed=resampling.seed)
    by_protocol = dict(zip(hits, np.split(means, len(hits), axis=1), strict=True))
    return {
        "read": {name: each.kind for name, each in models.items()},
        "widths": {name: each.width for name, each in models.items()},
        "accuracies": {
            protocol: {
                name: _accuracy(values[:, place], by_protocol[protocol][:, place], draws[protocol])
                for place, name in enumerate(models)
            }
            for protocol, values in hits.items()
        },
        "pairs": {
            protocol: _pairs(list(models), values, by_protocol[protocol], draws[protocol])
            for protocol, values in hits.items()
        },
    }


def _accuracy(hits: Array, means: Array, draws: int) -> dict[str, Any]:
    """The mean of hits (m,) with its interval; the mean of several draws is not a count."""
    interval = wilson_interval(int(hits.sum()), len(hits)) if draws == 1 else percentile_interval(means)
    return {"accuracy": float(hits.mean()), "interval": list(interval)}


def _pairs(names: Sequence[str], hits: Array, means: Array, draws: int) -> list[dict[str, Any]]:
    """Compare every two columns of hits (m, models), with the means of the same resamples (b, models)."""
    pairs: list[dict[str, Any]] = []
    for a, b in combinations(range(len(names)), 2):
        pair: dict[str, Any] = {
            "first": names[a],
            "second": names[b],
            "difference": float((hits[:, a] - hits[:, b]).mean()),
            "interval": list(percentile_interval(means[:, a] - means[:, b])),
        }
        if draws == 1:
            found = discordance(hits[:, a] == 1, hits[:, b] == 1)
            pair |= {**found._asdict(), "p": mcnemar(found.only_first, found.only_second)}
        pairs.append(pair)
    if draws == 1:
        add_holm(pairs)
    return pairs
