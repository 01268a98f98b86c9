"""`vit compare --finetune`, and `vit eval --finetune` of one: pretrained models fine-tuned on the same training images,
then compared on the test images.

One recipe for each kind of model, as many images seen, the same seeds and augmentations; size and normalisation of the
images are each model's own. Every head is new: what one learned before would count for its model alone.
Each run can be repeated by `vit train` alone with the `config.yaml` of its folder:

    FOLDER/runs/NAME/          the run of the first seed
    FOLDER/runs/NAME-seed-N/   those of further seeds
    FOLDER/comparison.*        of the first seed's runs, by `vit.comparison`
    FOLDER/NAME_DATA.json      of one model alone
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from vit.comparison.compare import CompareRequest, Comparison, compare_models
from vit.comparison.leaks import check_unseen
from vit.comparison.metrics import Resampling
from vit.comparison.report import trained_seeds
from vit.comparison.request import MIN_RESAMPLES
from vit.config import DataConfig, Preprocessing, check
from vit.data.images import open_test, place_name
from vit.engine import check_one_process
from vit.evaluation.metrics import CONVENTIONS as METRICS
from vit.evaluation.metrics import classification_metrics
from vit.evaluation.predictions import Predictions
from vit.evaluation.seen_images import SeenImages, warnings_of
from vit.evaluation.statistics import wilson_interval
from vit.experiments.finetuning_table import CONVENTIONS, seed_statistics
from vit.experiments.jobs import check_at_once
from vit.experiments.planned_runs import SHARED, PlannedRun, check_same_images, check_shared, train_runs
from vit.hub import OpenedModel, open_model, source_kind
from vit.hub.preprocessing import with_preprocessing
from vit.hub.sources import short_names
from vit.models import Classifier, ResNet, VisionTransformer
from vit.runs import keep_earlier, write_json
from vit.settings import DEFAULT, ResolvedRun, flat_settings, resolve_run
from vit.tasks.classification import require_classification
from vit.tasks.classification.config import ClassificationRun
from vit.training.session import open_session
from vit.weights.files import SUFFIXES

RECIPES: Mapping[str, str | Path] = {"vit": "finetune_your_images", "resnet": "finetune_your_images_resnet"}
"""Kind of model → configuration file, or the name of a packaged one."""
_OF_SOURCE = ("model.name", "model.pretrained", "model.image_size", "data.mean", "data.std", "output_dir")
"""Settings that are each model's own."""
_OF_SOURCE_BY_DEFAULT = ("data.crop_fraction", "data.squash", "data.interpolation", "data.antialias")
"""Those that the user may change, for all models."""


@dataclass(frozen=True, kw_only=True)
class FinetuneRequest:
    """The models, and how they are fine-tuned and compared."""

    models: Sequence[str]
    output_dir: Path
    settings: Sequence[str] = ()
    """Words `--section.setting`, `VALUE` that are put over every recipe."""
    recipes: Mapping[str, str | Path] = field(default_factory=lambda: RECIPES)
    architecture: str | None = None
    """The name for weights files that do not determine it."""
    image_sizes: Sequence[int] = ()
    """Sizes other than the models' own: one, or one for each."""
    mean: Sequence[float] | None = None
    """With `std`, for the models whose source does not say how its images are prepared."""
    std: Sequence[float] | None = None
    num_seeds: int = 1
    at_once: int = 1
    """How many runs are trained at the same time."""
    leaky: bool = False
    """Also fine-tune runs that were trained on test images."""
    corruptions: bool = False
    speed: bool = False
    resampling: Resampling = field(default_factory=lambda: Resampling(MIN_RESAMPLES))

    def __post_init__(self) -> None:
        check(self.num_seeds >= 1, "--seeds", self.num_seeds, "it must be at least 1")
        check_at_once(self.at_once)
        sizes, rule = list(self.image_sizes), f"give one size, or one for each of the {len(self.models)} models"
        check(len(sizes) in (0, 1, len(self.models)), "--image_size", sizes, rule)
        given = self.mean is None and self.std is None
        check(given or None not in (self.mean, self.std), "--mean", self.mean, "give --mean and --std together")


@dataclass(frozen=True)
class PretrainedModel:
    """The facts of a model that fine-tuning needs; the weights are read again when it is trained."""

    name: str
    source: str
    kind: str
    """`vit` or `resnet`."""
    architecture: str | None
    preprocessing: Preprocessing
    pretraining_data: str


def compare_finetuned(request: FinetuneRequest) -> Comparison:
    """Fine-tune every model that is not finished yet, and compare the runs; `result["finetuning"]` records them.

    ValueError, before anything is trained, for models and data that cannot be trained or not compared alike; `Stopped`
    after a signal. The same request continues.
    """
    rule = "give at least two models to compare; `vit eval MODEL --finetune` fine-tunes one"
    check(len(request.models) >= 2, "model", list(request.models), rule)
    models, runs = _opened_and_planned(request)
    first = runs[0].config
    compared = CompareRequest(
        models=[str(run.folder) for run in runs[: len(models)]],
        data=first.data,
        output_dir=request.output_dir,
        corruptions=request.corruptions,
        speed=request.speed,
        leaky=request.leaky,
        device=first.device,
        precision=first.train.precision,
        resampling=request.resampling,
    )
    _seen_by_sources(request, first.data)
    rows = _trained(models, runs, request.at_once)
    check_same_images(rows)
    comparison = compare_models(compared)
    comparison.result["finetuning"] = {"runs": rows, **seed_statistics(rows)}
    comparison.result["conventions"] |= CONVENTIONS
    return comparison


def evaluate_finetuned(request: FinetuneRequest) -> dict[str, Any]:
    """Fine-tune one model as `compare_finetuned` does, and store and return its metrics on the test images.

    `finetuning` holds the same record; metrics are the first seed's. Raises as `compare_finetuned` does; test images
    seen in training give a warning.
    """
    models, runs = _opened_and_planned(request)
    data = runs[0].config.data
    seen = _seen_by_sources(replace(request, leaky=True), data)
    rows = _trained(models, runs, request.at_once)
    check_same_images(rows)
    answers = Predictions.load(runs[0].folder / "predictions" / "test.npz")
    metrics = classification_metrics(answers)
    right = round(metrics["top1"] * metrics["n_seen"])
    result = {
        "model": request.models[0],
        "data": {"name": data.name, "root": data.root, "fingerprint": answers.fingerprint},
        "warnings": warnings_of(seen),
        **metrics,
        "top1_interval": list(wilson_interval(right, round(metrics["n_seen"]))),
        "finetuning": {"runs": rows, **seed_statistics(rows)},
        "conventions": CONVENTIONS | METRICS,
    }
    stem = f"{models[0].name}_{place_name(data)}"
    if kept := keep_earlier(request.output_dir, stem, [f"{stem}.json"], partial(_has_all, trained_seeds(result))):
        print(f"note: {stem}.json had other seeds, and is in {kept} now", file=sys.stderr)
    write_json(request.output_dir / f"{stem}.json", result)
    return result


def _has_all(seeds: set[tuple[str, int]], before: Mapping[str, Any]) -> bool:
    return trained_seeds(before) <= seeds


def _opened_and_planned(request: FinetuneRequest) -> tuple[list[PretrainedModel], list[PlannedRun]]:
    for source in request.models:
        source_kind(source)  # a misspelled model is reported before one is opened
    models = open_pretrained(request)
    return models, plan_finetuning(request, models)


def _seen_by_sources(request: FinetuneRequest, data: DataConfig) -> list[SeenImages]:
    """List the test images that the runs to be fine-tuned have seen. ValueError as `check_unseen`."""
    started = [open_model(source) for source in request.models if source_kind(source) == "run"]
    return check_unseen(started, data, open_test(data), request.leaky)


def _trained(models: Sequence[PretrainedModel], runs: Sequence[PlannedRun], at_once: int) -> list[dict[str, Any]]:
    """Train what is not finished, and return what is told of every run."""
    by_name = {model.name: model for model in models}
    summaries = train_runs(runs, at_once)
    return [_row(run, by_name[run.recipe], summary) for run, summary in zip(runs, summaries, strict=True)]


# ------------------------------------------------------------------ the models


def open_pretrained(request: FinetuneRequest) -> list[PretrainedModel]:
    """Open every model to learn its kind and preprocessing. ValueError for one that cannot be trained."""
    names = _folder_names(request.models)
    files = [source for source in request.models if source_kind(source) == "file"]
    rule = "it has an effect only on weights files"
    check(request.architecture is None or bool(files), "--architecture", request.architecture, rule)
    sizes: list[int | None] = [*request.image_sizes] or [None]
    if len(sizes) == 1:
        sizes *= len(names)
    models, normalized = [], 0
    for source, name, size in zip(request.models, names, sizes, strict=True):
        architecture = request.architecture if source_kind(source) == "file" else None
        opened = open_model(source, architecture=architecture)
        kind = _kind(opened)
        states_none = opened.stated_preprocessing is None
        normalized += states_none
        mean, std = (request.mean, request.std) if states_none else (None, None)
        opened = with_preprocessing(opened, None, mean, std, size)
        preprocessing = opened.preprocessing
        rule = f"{source} takes images with blue first, and training has red first"
        check(preprocessing.channel_order == "rgb", "model", source, rule)
        data = " → ".join(opened.provenance.data)
        models.append(PretrainedModel(name, source, kind, architecture, preprocessing, data))
    rule = "every model's source says how its images are prepared; leave it out"
    check(request.mean is None or normalized > 0, "--mean", request.mean, rule)
    return models


def _kind(opened: OpenedModel) -> str:
    """`vit` or `resnet`. ValueError for a model that cannot be fine-tuned as one of them."""
    opened.check_single_label()
    model, source = opened.model, opened.source
    rule = "it has no trained weights to fine-tune; `vit compare --train` trains from scratch"
    check(not opened.provenance.is_random, "model", source, rule)
    why = f" ({opened.reason})" if opened.reason else ""
    rule = f"only models that this package computes can be trained, and {opened.implementation} computes this one{why}"
    check(opened.is_ours and isinstance(model, Classifier), "model", source, rule)
    rule = f"fine-tuning has recipes for Vision Transformers and ResNets, this is a {type(model).__name__}"
    check(isinstance(model, (VisionTransformer, ResNet)), "model", source, rule)
    return "vit" if isinstance(model, VisionTransformer) else "resnet"


def _folder_names(sources: Sequence[str]) -> list[str]:
    """The sources' short names, without suffixes of weights files, as names of folders that differ."""
    names = []
    for short in short_names(sources):
        suffix = next((suffix for suffix in SUFFIXES if short.endswith(suffix)), "")
        names.append(short.removesuffix(suffix).replace("/", "-"))
    twice = len(set(names)) < len(names)  # as of two files that differ in the suffix
    return [name.replace("/", "-") for name in short_names(sources)] if twice else names


# ------------------------------------------------------------------ the runs


def plan_finetuning(request: FinetuneRequest, models: Sequence[PretrainedModel]) -> list[PlannedRun]:
    """Every run, seed by seed. Nothing is trained.

    ValueError for recipes whose images, augmentation, epochs or seed differ, for a setting that is each model's own,
    for data without training or test images, for several processes, and for what else cannot be trained.
    """
    resolved = {model.name: _resolve(request, model) for model in models}
    configs = {name: require_classification(each.config, "recipe", name) for name, each in resolved.items()}
    first = next(iter(configs.values()))
    by_recipe = {str(request.recipes[model.kind]): configs[model.name] for model in models}
    augment = tuple(key for key in flat_settings(first) if key.startswith("augment."))
    parts = ("data.fraction", "data.subset_seed", "data.epoch_length", "data.sampling")
    check_shared(by_recipe, (*SHARED, *parts, *augment))
    runs = []
    for seed in range(first.seed, first.seed + request.num_seeds):
        for name, config in configs.items():
            folder = name if seed == first.seed else f"{name}-seed-{seed}"
            runs.append(
                PlannedRun(
                    recipe=name,
                    title=f"fine-tuning {name}, seed {seed}",
                    config=replace(config, seed=seed),
                    origins=resolved[name].origins,
                    folder=request.output_dir / "runs" / folder,
                )
            )
    _check_runs(runs[: len(models)])
    return runs


def _resolve(request: FinetuneRequest, model: PretrainedModel) -> ResolvedRun:
    """The recipe of the model's kind, with the model and its preprocessing."""
    recipe, option = request.recipes[model.kind], f"--{model.kind}_recipe"
    base = resolve_run(recipe, request.settings, option)
    config = require_classification(base.config, option, str(recipe))
    values = flat_settings(config)
    for setting in _OF_SOURCE:
        rule = (
            "it is each model's own; leave it out (--image_size sets sizes; --mean and --std are for unknown sources)"
        )
        check(base.origins[setting] == DEFAULT, setting, values[setting], rule)
    own = model.preprocessing
    words = [
        f"--model.pretrained={model.source}",
        f"--model.image_size={list(own.image_size)}",
        f"--data.mean={list(own.mean)}",
        f"--data.std={list(own.std)}",
    ]
    if model.architecture is not None:
        words.append(f"--model.name={model.architecture}")
    if base.origins["model.new_head"] == DEFAULT:
        words.append("--model.new_head=true")
    for setting in _OF_SOURCE_BY_DEFAULT:
        if base.origins[setting] == DEFAULT:
            value = getattr(own, setting.removeprefix("data."))
            words.append(f"--{setting}={value if isinstance(value, str) else json.dumps(value)}")
    return resolve_run(recipe, [*request.settings, *words], option)


def _check_runs(runs: Sequence[PlannedRun]) -> None:
    """ValueError for a run that could not be trained: else the mistake would show when those before it are done."""
    for run in runs:
        if not (run.folder / "summary.json").is_file():
            session = open_session(run.config, run.folder, compiles=False)
            check_one_process(session.accelerator, "compare", "models are fine-tuned")


def _row(run: PlannedRun, model: PretrainedModel, summary: Mapping[str, Any]) -> dict[str, Any]:
    config = run.config
    kept = ("epochs", "steps", "images_seen", "seconds", "images_per_second", "val.top1", "test.top1", "test.n_total")
    height, width = model.preprocessing.image_size
    return {
        "name": model.name,
        "source": model.source,
        "recipe": describe_recipe(config),
        "new_head": config.model.new_head,
        "pretraining_data": model.pretraining_data,
        "image_size": f"{height}×{width}",
        "fraction": run.fraction,
        "seed": config.seed,
        "num_images": summary["train.n_total"],
        **{key: summary[key] for key in kept},
        "data.fingerprint": summary["data.fingerprint"],
        "run": str(run.folder),
    }


def describe_recipe(config: ClassificationRun) -> str:
    """The optimizer's settings in one line."""
    optim = config.optim
    parts = [optim.name, f"lr {optim.lr:g}", f"weight decay {optim.weight_decay:g}", optim.schedule]
    if optim.layer_decay != 1:
        parts.append(f"layer decay {optim.layer_decay:g}")
    if optim.warmup_epochs:
        parts.append(f"warm-up {optim.warmup_epochs:g} epochs")
    return ", ".join([*parts, f"batch {config.data.batch_size}"])
