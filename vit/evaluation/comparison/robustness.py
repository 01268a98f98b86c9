"""Accuracy on corrupted images: fifteen kinds at five strengths, the same corrupted images for every model.

Counts are stored after every kind and strength, so that hours of it can be stopped and continued.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from vit.data.images import Split
from vit.evaluation.comparison.answers import Question, file_stem, identity_of, predict_for
from vit.evaluation.comparison.contestants import Contestant
from vit.evaluation.corruptions import CONVENTIONS, KINDS, STRENGTHS
from vit.evaluation.corruptions.errors import CONVENTIONS as ERROR_CONVENTIONS
from vit.evaluation.corruptions.errors import mean_accuracy, mean_corruption_error
from vit.evaluation.corruptions.source import CorruptedSource
from vit.runs import write_json

CLEAN = "clean"


def corruption_results(
    contestants: Sequence[Contestant], columns: Sequence[Sequence[int]], question: Question, seed: int
) -> dict[str, Any]:
    """`clean`, `accuracy` (model → kind → strengths), `mean_accuracy` and `mce` by model; the first is the baseline."""
    found = [_accuracies(each, places, question, seed) for each, places in zip(contestants, columns, strict=True)]
    names = [contestant.name for contestant in contestants]
    curves = [{kind: [each[_key(kind, strength)] for strength in STRENGTHS] for kind in KINDS} for each in found]
    errors = [{kind: [1 - value for value in values] for kind, values in curve.items()} for curve in curves]
    baseline_errs = all(sum(values) > 0 for values in errors[0].values())
    return {
        "clean": {name: each[_key(KINDS[0], 0)] for name, each in zip(names, found, strict=True)},
        "accuracy": dict(zip(names, curves, strict=True)),
        "mean_accuracy": {name: mean_accuracy(each) for name, each in zip(names, errors, strict=True)},
        "mce": {
            name: mean_corruption_error(each, errors[0]) if baseline_errs else None
            for name, each in zip(names, errors, strict=True)
        },
        "conventions": CONVENTIONS | ERROR_CONVENTIONS | {"baseline": names[0], "seed": str(seed)},
    }


def _key(kind: str, strength: int) -> str:
    return f"{kind}/{strength}" if strength else CLEAN


def _accuracies(contestant: Contestant, columns: Sequence[int], question: Question, seed: int) -> dict[str, float]:
    """Top-1 by kind/strength, and on clean images of the same size."""
    place = question.folder / f"{file_stem(contestant)}_corruptions.json"
    identity = identity_of(contestant, question) | {"seed": seed, "columns": list(columns)}
    found = _stored(place, identity)
    tasks = [(KINDS[0], 0), *((kind, strength) for kind in KINDS for strength in STRENGTHS)]
    missing = [task for task in tasks if _key(*task) not in found]
    for kind, strength in tqdm(missing, desc=f"{contestant.name}, corruptions", disable=None):
        source = CorruptedSource(question.split.source, kind, strength, seed)
        asked = replace(question, split=Split(source, question.split.indices))
        predictions = predict_for(contestant, asked, quiet=True)
        hits = predictions.logits[:, list(columns)].argmax(axis=1) == predictions.labels
        found[_key(kind, strength)] = float(hits.mean())
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, {"identity": identity, "top1": found})
    return found


def _stored(place: Path, identity: dict[str, Any]) -> dict[str, float]:
    try:
        content = json.loads(place.read_text())
    except (OSError, ValueError):  # none yet
        return {}
    return dict(content["top1"]) if content.get("identity") == identity else {}
