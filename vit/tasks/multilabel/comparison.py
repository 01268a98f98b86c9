"""`vit compare` of multi-label runs: average precision on the same images, with intervals and paired differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vit.comparison.confounders import provenance_warnings
from vit.comparison.leaks import check_unseen
from vit.comparison.metrics import Resampling
from vit.comparison.request import MIN_RESAMPLES, data_facts, model_facts
from vit.config import RunConfig, check
from vit.data.loading import EvalLoader
from vit.data.splits import Split, fingerprint
from vit.engine import check_one_process, make_accelerator
from vit.evaluation.seen_images import warnings_of
from vit.evaluation.statistics import Array, add_holm, bootstrap_p, percentile_interval
from vit.figures.average_precision import MOST_MODELS
from vit.hub import OpenedModel, open_models
from vit.tasks.multilabel.comparison_report import summary, write_report
from vit.tasks.multilabel.config import MultilabelRun
from vit.tasks.multilabel.metrics import CONVENTIONS as METRICS
from vit.tasks.multilabel.metrics import LabelPredictions, decision_metrics, metrics_by_class, ranking_metrics
from vit.tasks.multilabel.resampling import mean_over_classes, resampled_average_precisions
from vit.tasks.multilabel.table import open_test, open_trained
from vit.tasks.multilabel.training import predict_labels
from vit.versions import computing_versions

CONVENTIONS = {
    **METRICS,
    "thresholds": f"each run's own: {METRICS['thresholds']}",
    "interval": "95 %; percentiles of a bootstrap of the images; classes that a resample does not hold are left out of "
    "its mean; for a class of few images biased upwards, as copies of an image stand together in the order",
    "difference": "first − second, on the same images; interval: the same resamples for every model",
    "p": "two-sided, of the difference of mean average precision: twice the share of resamples beyond 0",
    "p_holm": "the same, adjusted for the number of pairs (Holm 1979)",
}


def compare_runs(
    runs: Sequence[Path],
    config_of: Callable[[Path], RunConfig],
    output_dir: Path,
    select: Literal["best", "last"] = "best",
    leaky: bool = False,
) -> list[str]:
    """Evaluate runs on the same test table; write predictions, numbers, a figure and a page. Lines for the terminal.

    `config_of` gives the settings of a run. ValueError, before anything is computed, for other classes or test images
    than the first run's, and, unless `leaky`, for a run that was trained on some of them.
    """
    if len(runs) < 2:
        raise ValueError(f"MODEL: give at least two models to compare, not {' '.join(map(str, runs)) or 'none'} alone")
    check(len(runs) <= MOST_MODELS, "model", len(runs), f"a figure holds at most {MOST_MODELS} models")
    configs = [config for config in map(config_of, runs) if isinstance(config, MultilabelRun)]
    assert len(configs) == len(runs), "every run is one of this task"
    models = open_models([str(run) for run in runs], select=select)
    split = same_images(models, configs)
    seen = check_unseen(models, None, split, leaky, open_trained)  # tables may name an image twice: always compared
    predictions = {
        model.name: predict_split(model, config, split) for model, config in zip(models, configs, strict=True)
    }
    for name, each in predictions.items():
        each.save(output_dir / "predictions" / f"{name.replace('/', '_')}.npz")
    result: dict[str, Any] = {
        "data": data_facts(configs[0].data, split) | {"name": configs[0].data.test_table},
        "resamples": MIN_RESAMPLES,
        "seed": 0,
        "conventions": CONVENTIONS,
        "versions": computing_versions(),
        **comparison_metrics(predictions, Resampling(MIN_RESAMPLES, seed=0)),
        "seen_images": [asdict(each) for each in seen],
        "warnings": [*warnings_of(seen), *provenance_warnings(models)],
    }
    for row, model in zip(result["models"], models, strict=True):
        row |= {"source": model.source, "identity": model.identity, **model_facts(model, seen)}
    write_report(result, output_dir)
    return [*summary(result), f"see {output_dir}/comparison.html"]


def same_images(models: Sequence[OpenedModel], configs: Sequence[MultilabelRun]) -> Split:
    """The first run's test images. ValueError, naming the run, where another has other classes, images or labels."""
    first, names = models[0], models[0].class_names
    split = open_test(configs[0].data, names)
    for model, config in zip(models[1:], configs[1:], strict=True):
        if different := sorted(set(names) ^ set(model.class_names)):
            who = first.name if different[0] in names else model.name
            raise ValueError(
                f"compare: {model.name!r} has other classes than {first.name!r}: only {who} has {different[0]!r}"
            )
        own = open_test(config.data, names)
        if fingerprint(own) != fingerprint(split):
            where = f"{Path(config.data.root) / config.data.test_table}"
            raise ValueError(
                f"compare: {model.name!r} has other test images or labels than {first.name!r} ({where}); "
                "--data DIR gives all of them the same tables"
            )
    return split


def predict_split(model: OpenedModel, config: MultilabelRun, split: Split) -> LabelPredictions:
    """A run's logits for the split in the order of the split's classes, computed as `vit eval` does."""
    accelerator = make_accelerator(config.device, config.train.precision)
    check_one_process(accelerator, "compare", "models are compared")
    loader = EvalLoader(split, model.preprocessing, config.data)
    names, thresholds = split.source.class_names, np.array(model.thresholds)
    found = predict_labels(accelerator, accelerator.prepare(model.model), loader, names, thresholds)
    columns = [model.class_names.index(name) for name in names]
    return replace(found, logits=found.logits[:, columns], thresholds=thresholds[columns])


def comparison_metrics(predictions: dict[str, LabelPredictions], resampling: Resampling) -> dict[str, Any]:
    """Compute `models`, `pairs` (with the differences of each class) and `classes` from predictions for one split.

    Images that one of the models could not read are left out for all.
    """
    names = list(predictions)
    seen = set.intersection(*(set(each.indices.tolist()) for each in predictions.values()))
    evaluated = [each.of_images(sorted(seen)) for each in predictions.values()]
    resampled = resampled_average_precisions(
        evaluated[0].labels,
        [each.probabilities for each in evaluated],
        num_resamples=resampling.num_resamples,
        seed=resampling.seed,
    )
    means = mean_over_classes(resampled)  # models resamples
    by_class = [metrics_by_class(each) for each in evaluated]
    models: list[dict[str, Any]] = [
        {"name": name, **ranking_metrics(each), "map_interval": _interval(mean), **decision_metrics(each)}
        for name, each, mean in zip(names, evaluated, means, strict=True)
    ]
    classes: list[dict[str, Any]] = [
        {
            "class": label,
            "images": by_class[0][label]["images"],
            "models": {
                name: {**rows[label], "interval": _interval(resampled[model, :, k])}
                for model, (name, rows) in enumerate(zip(names, by_class, strict=True))
            },
        }
        for k, label in enumerate(evaluated[0].class_names)
    ]
    pairs: list[dict[str, Any]] = []
    for a, b in combinations(range(len(names)), 2):
        difference = means[a] - means[b]
        pair: dict[str, Any] = {
            "first": names[a],
            "second": names[b],
            "map_difference": models[a]["map"] - models[b]["map"],
            "map_interval": _interval(difference),
            "p": bootstrap_p(difference[~np.isnan(difference)]),
            "classes": {
                row["class"]: {
                    "difference": _difference(row["models"][names[a]], row["models"][names[b]]),
                    "interval": _interval(resampled[a, :, k] - resampled[b, :, k]),
                }
                for k, row in enumerate(classes)
            },
        }
        pairs.append(pair)
    add_holm(pairs)
    return {"models": models, "pairs": pairs, "classes": classes}


def _interval(resampled: Array) -> list[float] | None:
    """None for a class that no resample holds."""
    known = resampled[~np.isnan(resampled)]
    return list(percentile_interval(known)) if len(known) else None


def _difference(first: dict[str, Any], second: dict[str, Any]) -> float | None:
    one, other = first["average_precision"], second["average_precision"]
    return None if one is None else one - other
