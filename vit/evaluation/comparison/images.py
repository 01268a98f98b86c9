"""On which images models are compared: what the user says, or what the first of our runs was made for.

Owns also what `vit eval --baseline` asks for: a run beside another model, on what the run is evaluated on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vit.config import ClassificationRun, DataConfig, check
from vit.data.images import NAMES
from vit.evaluation.checkpoint import Request
from vit.evaluation.classifier_checkpoint import for_other_data
from vit.evaluation.comparison.compare import CompareRequest
from vit.evaluation.comparison.contestants import check_sources, is_of_library
from vit.runs import find_checkpoint, holds_checkpoints, read_checkpoint
from vit.settings import check_overrides, override, run_config_from

SETTINGS = tuple(
    f"data.{name}"
    for name in (
        *("name", "root", "download", "test_folder", "val_fraction", "split_seed", "eval_batch_size", "workers"),
        *("on_broken_image", "fake_images", "fake_classes"),
    )
)
"""What can be said of the images; their preprocessing is each model's own."""


def resolve_data(models: Sequence[str], data: str | None, overrides: Sequence[str]) -> DataConfig:
    """`data` is a data set's name or an image folder; None: the data of the first run among the models.

    ValueError where there is no such, and for a setting that would have no effect.
    """
    base = ClassificationRun() if data is not None else _of_first_run(models)
    words = [*_words(data), *overrides]
    check_overrides(base, words, SETTINGS, {})
    config = override(for_other_data(base, words), words)
    assert isinstance(config, ClassificationRun)
    return config.data


def _words(data: str | None) -> list[str]:
    if data is None:
        return []
    if data in NAMES or data.startswith("torchvision:"):
        return ["--data.name", data]
    check(Path(data).is_dir(), "--data", data, f"it is neither a folder nor one of {', '.join(NAMES)}")
    return ["--data.name", "imagefolder", "--data.root", data]


def _of_first_run(models: Sequence[str]) -> ClassificationRun:
    runs = [Path(model) for model in models if holds_checkpoints(Path(model))]
    if not runs:
        raise ValueError(f"--data: it is needed, for no model is a run of ours; a folder, or one of {', '.join(NAMES)}")
    return _classifier(runs[0])


def _classifier(run: Path, select: str = "best") -> ClassificationRun:
    trained = run_config_from(read_checkpoint(find_checkpoint(run, select), []).state["config"])
    rule = f"it was trained for {trained.task}; only image classifiers are compared"
    check(isinstance(trained, ClassificationRun), "model", str(run), rule)
    assert isinstance(trained, ClassificationRun)
    return trained


def baseline_request(request: Request, baseline: str) -> CompareRequest:
    """The run that `request` evaluates, beside `baseline`: a MODEL as `vit compare` has it, or a bare name of timm's.

    ValueError for what `vit eval` can change of the run and a comparison cannot.
    """
    check(
        request.weights == "auto", "--weights", request.weights, "with --baseline the run's default ones are compared"
    )
    size = request.image_size
    check(size is None, "--image_size", size, "with --baseline each model is judged at its own size")
    is_model = is_of_library(baseline) or Path(baseline).exists()
    models = [str(request.checkpoint), baseline if is_model else f"timm:{baseline}"]
    check_sources(models)
    trained = _classifier(request.checkpoint, request.select)
    config = override(for_other_data(trained, request.overrides), request.overrides)
    assert isinstance(config, ClassificationRun)
    return CompareRequest(
        models=models,
        data=config.data,
        output_dir=request.folder / "comparison",
        select=request.select,
        device=config.device,
        precision=config.train.precision,
    )
