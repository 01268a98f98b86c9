"""The images that a command is given by `--data`, or takes from the first run among its models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.cli.models import first_run
from vit.config import DataConfig, ImageRun
from vit.tasks import TASKS
from vit.tasks.classification.config import ClassificationRun

if TYPE_CHECKING:
    from vit.data.splits import Split

LABELLED = "a data set's name, or a folder of class folders"
DATA = "a data set's name, a folder of class folders or of images, or image files"
SETTINGS = tuple(
    f"data.{name}"
    for name in (
        *("name", "root", "download", "test_folder", "test_fraction", "val_fraction"),
        *("split_seed", "eval_batch_size", "workers"),
        *("on_broken_image", "fake_images", "fake_classes"),
    )
)
"""Settings of the images that commands accept; preprocessing belongs to the model."""


def find_images(
    models: Sequence[str], places: Sequence[str] | None, overrides: Sequence[str], *, labelled: bool = False
) -> DataConfig | Sequence[str]:
    """Resolve `--data` as `resolve_data` does, or return the paths of folders and files of images without labels.

    `labelled`: several folders of images in one are classes, all of whose images are meant. Without any setting and any
    run among the models, the list is empty.
    """
    from vit.runs import holds_checkpoints

    if not places and (overrides or any(holds_checkpoints(Path(model)) for model in models)):
        return resolve_data(models, None, overrides)
    if places and len(places) == 1 and DataConfig().is_set(places[0]):
        return resolve_data(models, places[0], overrides)
    if labelled and places and len(places) == 1 and holds_classes(Path(places[0])):
        return all_images(resolve_data(models, places[0], overrides), models, overrides)
    if overrides:
        raise ValueError(f"{overrides[0]}: it has no effect on images without classes; --data must name a data set")
    return places or ()


def holds_classes(folder: Path) -> bool:
    """Whether several folders of images are in it, and no image beside them."""
    from vit.data.parts import folders_in, holds_images, is_image

    apart = folder.is_dir() and not any(is_image(path.name) for path in folder.iterdir())
    return apart and sum(map(holds_images, folders_in(folder))) > 1


def resolve_data(models: Sequence[str], data: str | None, overrides: Sequence[str]) -> DataConfig:
    """Resolve `--data` and `--data.…` to labelled images: a data set's name, or a folder of class folders.

    Without a name, these are the images of the first run among the models. ValueError if there is no run, if its
    images are not of one class each, and for settings without effect.
    """
    from vit.settings import override
    from vit.trained_runs import trained_settings

    base = ClassificationRun()
    if data is None and not any(word.split("=")[0] == "--data.name" for word in overrides):
        run = first_run(models)
        own = trained_settings(run)
        if not (isinstance(own, ImageRun) and type(own.data) is DataConfig):
            raise ValueError(
                f"--data: required: {str(run)!r} is a run of task {own.task!r}; name images of one class each"
            )
        base = replace(base, data=own.data)
    return override(base, [*(["--data", data] if data else []), *overrides], SETTINGS).data


def all_images(data: DataConfig, models: Sequence[str], overrides: Sequence[str]) -> DataConfig:
    """The settings by which all images of a place without parts are evaluated, unless a run among the models split
    off a part of it for its own test, or the `overrides` say which part is.
    """
    from vit.data.undivided import without_cut
    from vit.runs import holds_checkpoints
    from vit.trained_runs import trained_settings

    if any(word.split("=")[0].endswith("test_fraction") for word in overrides):
        return data
    runs = [trained_settings(Path(model)) for model in models if holds_checkpoints(Path(model))]
    return without_cut(data, [run.data for run in runs if isinstance(run, ClassificationRun)])


def settings_for_all_images(run: Path, select: str, overrides: Sequence[str]) -> list[str]:
    """Return the settings that make the evaluation of a run take all images, as `all_images` does."""
    from vit.trained_runs import trained_settings

    config = trained_settings(run, select, overrides)
    if not isinstance(config, ClassificationRun) or all_images(config.data, [str(run)], overrides) == config.data:
        return []
    return ["--data.test_fraction", "1.0"]


def own_test_images(
    models: Sequence[str], places: Sequence[str] | None, overrides: Sequence[str], select: str
) -> tuple[Split, DataConfig] | None:
    """The test images of the first run, or those that `--data` names instead, where its task opens them itself.

    None where it does not, where there is no run, and where `--data` names images without the task's labels.
    """
    from vit.runs import holds_checkpoints
    from vit.trained_runs import trained_settings

    run = next((Path(model) for model in models if holds_checkpoints(Path(model))), None)
    open_images = None if run is None else TASKS[trained_settings(run, select).task].function("open_test_images")
    if run is None or open_images is None:
        return None
    config: Any = trained_settings(run, select, [] if places else overrides)
    if places:
        if len(places) > 1 or not config.data.is_set(places[0]):
            return None
        config = trained_settings(run, select, ["--data", places[0], *overrides])
    return open_images(config), config.data
