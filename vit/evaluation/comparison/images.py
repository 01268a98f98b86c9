"""On which images models are compared: what the user says, or what the first of our runs was made for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vit.config import ClassificationRun, DataConfig, check
from vit.data.images import NAMES
from vit.evaluation.classifier_checkpoint import for_other_data
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
    trained = run_config_from(read_checkpoint(find_checkpoint(runs[0]), []).state["config"])
    rule = f"it was trained for {trained.task}; only image classifiers are compared"
    check(isinstance(trained, ClassificationRun), "model", str(runs[0]), rule)
    assert isinstance(trained, ClassificationRun)
    return trained
