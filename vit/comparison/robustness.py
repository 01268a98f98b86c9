"""Accuracy on corrupted images: fifteen kinds at five severities, the same corrupted images for every model.

Accuracies are stored after every kind and severity, so that hours of work can be stopped and continued.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vit.comparison.predictions import EvalSet, compute_predictions
from vit.data.images import Split
from vit.evaluation.cache_key import cache_key, file_stem
from vit.evaluation.corruptions import CONVENTIONS, KINDS, SEVERITIES
from vit.evaluation.corruptions.errors import CONVENTIONS as ERROR_CONVENTIONS
from vit.evaluation.corruptions.errors import mean_accuracy, mean_corruption_error
from vit.evaluation.corruptions.source import CorruptedSource
from vit.evaluation.feature_store import hashed
from vit.evaluation.metrics import check_logits
from vit.hub import OpenedModel
from vit.progress import tracked
from vit.runs import write_json

CLEAN = "clean"


def add_corruptions(
    result: dict[str, Any],
    models: Sequence[OpenedModel],
    columns: Sequence[Sequence[int]],
    eval_set: EvalSet,
    seed: int,
) -> None:
    """Add `corruptions`, and `corrupted_top1` and `mce` to each model; the first model is the baseline of mCE."""
    names = [model.name for model in models]
    measured = [_accuracies(each, indices, eval_set, seed) for each, indices in zip(models, columns, strict=True)]
    curves = [{kind: [each[_key(kind, severity)] for severity in SEVERITIES] for kind in KINDS} for each in measured]
    errors = [{kind: [1 - value for value in values] for kind, values in curve.items()} for curve in curves]
    baseline_errs = all(sum(values) > 0 for values in errors[0].values())
    mce = [mean_corruption_error(each, errors[0]) if baseline_errs else None for each in errors]
    conventions = CONVENTIONS | ERROR_CONVENTIONS | {"baseline": names[0], "seed": str(seed)}
    result["corruptions"] = {
        "clean": {name: each[_key(KINDS[0], 0)] for name, each in zip(names, measured, strict=True)},
        "accuracy": dict(zip(names, curves, strict=True)),
        "mean_accuracy": {name: mean_accuracy(each) for name, each in zip(names, errors, strict=True)},
        "mce": dict(zip(names, mce, strict=True)),
        "conventions": conventions,
    }
    result["conventions"] |= conventions
    for row in result["models"]:
        row["corrupted_top1"] = result["corruptions"]["mean_accuracy"][row["name"]]
        row["mce"] = result["corruptions"]["mce"][row["name"]]


def _key(kind: str, severity: int) -> str:
    return f"{kind}/{severity}" if severity else CLEAN


def _accuracies(model: OpenedModel, columns: Sequence[int], eval_set: EvalSet, seed: int) -> dict[str, float]:
    """Measure top-1 for each kind/severity, and for clean images of the same size."""
    identity = cache_key(model, eval_set.split, eval_set.accelerator) | {"seed": seed, "columns": list(columns)}
    identity["on_broken_image"] = eval_set.data.on_broken_image
    before = eval_set.folder / f"{file_stem(model)}_corruptions.json"  # as earlier versions named it
    path = before.with_name(f"{before.stem}_{hashed(identity)}.json")  # so that another choice does not overwrite it
    top1 = _read_accuracies(path, identity) or _read_accuracies(before, identity)
    tasks = [(KINDS[0], 0), *((kind, severity) for kind in KINDS for severity in SEVERITIES)]
    missing = [task for task in tasks if _key(*task) not in top1]
    for kind, severity in tracked(missing, f"{model.name}, corruptions", len(missing), unit="corruption"):
        source = CorruptedSource(eval_set.split.source, kind, severity, seed)
        corrupted = replace(eval_set, split=Split(source, eval_set.split.indices))
        predictions = compute_predictions(model, corrupted, quiet=True)
        restricted = replace(predictions, logits=predictions.logits[:, list(columns)])
        check_logits(restricted)
        top1[_key(kind, severity)] = float((restricted.logits.argmax(axis=1) == restricted.labels).mean())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"identity": identity, "top1": top1})
    return top1


def _read_accuracies(path: Path, identity: dict[str, Any]) -> dict[str, float]:
    """The stored accuracies of these weights, images and options; nothing where there are none yet."""
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return dict(stored["top1"]) if stored.get("identity") == identity else {}
