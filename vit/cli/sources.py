"""Arguments that commands share: the options of MODEL, and the images of `--data`."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.cli.parsing import Parser, check_no_checkpoint, is_main_process
from vit.config import DATA_SETS, DataConfig, ImageRun, check
from vit.tasks import TASKS, TaskFolder
from vit.tasks.classification import require_classification
from vit.tasks.classification.config import ClassificationRun

if TYPE_CHECKING:
    from vit.data.splits import Split
    from vit.evaluation.transfer_evaluation import TransferOptions
    from vit.hub import OpenedModel

MODEL = (
    "a run or checkpoint folder, a weights file or folder, timm:NAME, torchvision:NAME, hf:NAME_OR_FOLDER, "
    "an architecture's name (random weights), or package.file:FUNCTION, which returns a module"
)
LEAKY = "also compare models that were trained on some of the test images"
LABELLED = "a data set's name, or a folder of class folders"
DATA = "a data set's name, a folder of class folders or of images, or image files"
SETTINGS = tuple(
    f"data.{name}"
    for name in (
        *(
            "name",
            "root",
            "download",
            "test_folder",
            "test_fraction",
            "val_fraction",
            "split_seed",
            "eval_batch_size",
            "workers",
        ),
        *("on_broken_image", "fake_images", "fake_classes"),
    )
)
"""Settings of the images that commands accept; preprocessing belongs to the model."""
_OPTIONS = (
    *("select", "weights", "architecture", "implementation", "image_size", "mean", "std", "class_names"),
    *("random_weights", "seed", "dtype"),
)


def add_model_options(parser: Parser, *, several: bool = False) -> None:
    """Add the options of `open_model`, the same ones for every command; `several`: a size for each model."""
    group = parser.add_argument_group("the model")
    group.add_argument("--select", choices=("best", "last"), default="best", help="a run's checkpoint")
    group.add_argument(
        "--weights",
        choices=("auto", "raw", "ema"),
        default="auto",
        help="a run's weights; auto: ema if the run has them",
    )
    group.add_argument("--architecture", metavar="NAME", help="for weights files that do not determine it")
    group.add_argument(
        "--implementation",
        choices=("auto", "ours", "theirs"),
        default="auto",
        help="code that computes a library's model; auto: ours if it computes the same",
    )
    sizes: dict[str, Any] = {"nargs": "+", "help": "another size than the models' own: one, or one for each"}
    one: dict[str, Any] = {"help": "another size than the model's own; positions are resized"}
    group.add_argument("--image_size", type=int, **(sizes if several else one))
    group.add_argument(
        "--mean", type=float, nargs=3, metavar="M", help="normalization of red, green and blue, in [0, 1]"
    )
    group.add_argument("--std", type=float, nargs=3, metavar="S")
    group.add_argument("--class_names", nargs="+", default=(), metavar="CLASS", help="for a head without class names")
    group.add_argument(
        "--random_weights", action="store_true", help="give timm:NAME, torchvision:NAME or hf:NAME random weights"
    )
    group.add_argument("--seed", type=int, default=0, help="seed of random weights (default: %(default)s)")


def add_dtype_option(parser: Parser, *, several: bool = False) -> None:
    """Add `--dtype`, for commands that compute a model's predictions; `several`: one for each model."""
    options: dict[str, Any] = {"nargs": "+"} if several else {}
    text = "int8: run the blocks' linear layers in eight bits, on x86 processors"
    text += "; one for all models, or one for each" * several
    parser.add_argument("--dtype", choices=("auto", "int8"), default="auto", help=text, **options)


def add_transfer_options(parser: Parser) -> None:
    """Add `--transfer` and the options that need it, for `vit eval` and `vit compare`."""
    group = parser.add_argument_group("frozen features (--transfer)")
    group.add_argument("--transfer", action="store_true", help="evaluate them by k-NN, few-shot and a linear probe")
    group.add_argument(
        "--features",
        nargs="+",
        default=("head",),
        metavar="KIND",
        help="head (its input, the default), class (token), patches (their mean), class+patches, and of the last four "
        "blocks class-4, patches-4, class+patches-4",
    )
    group.add_argument("--train_images", type=int, help="about this many, classes balanced (default: all)")


def transfer_options(args: Namespace) -> TransferOptions | None:
    """The options of `add_transfer_options` and `--images`; None without `--transfer`. ValueError without effect."""
    from vit.evaluation.transfer_evaluation import TransferOptions

    if args.transfer:
        return TransferOptions(
            features=tuple(dict.fromkeys(args.features)),
            num_train_images=args.train_images,
            num_test_images=args.images,
        )
    for option, is_default in (("features", args.features == ("head",)), ("train_images", args.train_images is None)):
        check(is_default, f"--{option}", getattr(args, option), "it has an effect only with --transfer")
    return None


def model_options(args: Namespace) -> dict[str, Any]:
    """Move the options of `add_model_options` and `add_dtype_option` from the namespace to keywords of `open_model`."""
    return {name: vars(args).pop(name) for name in _OPTIONS if name in args}


def note_random_weights(opened: OpenedModel) -> None:
    """On standard error, because the result itself does not show it."""
    if opened.provenance.is_random and is_main_process():
        print(opened.summary(), file=sys.stderr)


def split_settings(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate `--section.setting value` pairs from all other arguments, in any order."""
    settings: list[str] = []
    rest: list[str] = []
    remaining = iter(argv)
    for word in remaining:
        if word.startswith("--") and "." in word.split("=")[0]:
            settings += [word] if "=" in word else [word, *islice(remaining, 1)]
        else:
            rest.append(word)
    return settings, rest


# ------------------------------------------------------------------ images


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


def check_outside_run(option: str, place: Path | None, model: str) -> None:
    """ValueError for a file or folder to be written among the checkpoints of a run, or the images of run `model`."""
    from vit.data.file_source import check_outside
    from vit.data.images import open_training
    from vit.runs import holds_checkpoints
    from vit.trained_runs import trained_settings

    check_no_checkpoint(option, place)
    if place is None or not holds_checkpoints(Path(model)):
        return
    config = trained_settings(Path(model), "last")
    if isinstance(config, ClassificationRun) and Path(config.data.root).resolve() in (
        place.resolve(),
        *place.resolve().parents,
    ):
        check_outside(option, place, open_training(config.data)[0].source)


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


def first_run(models: Sequence[str]) -> Path:
    """Return the first run among the models. ValueError if there is none, or a model that is nowhere."""
    from vit.runs import holds_checkpoints

    runs = [Path(model) for model in models if holds_checkpoints(Path(model))]
    if not runs:
        from vit.hub.sources import source_kind

        for model in models:
            source_kind(model)  # a run that is missing is no reason to ask for data
        raise ValueError(
            f"--data: required: no model is a training run; give a folder, or one of {', '.join(DATA_SETS)}"
        )
    return runs[0]


def classifier_settings(run: Path, select: str = "best", overrides: Sequence[str] = ()) -> ClassificationRun:
    """Read the settings of a classifier's run, with overrides. ValueError for a run of another task."""
    from vit.trained_runs import trained_settings

    return require_classification(trained_settings(run, select, overrides), "model", str(run))


def task_of_run(model: str) -> TaskFolder | None:
    """The task of a run; None for any other model, which is taken as an image classifier."""
    from vit.runs import holds_checkpoints
    from vit.trained_runs import trained_settings

    return TASKS[trained_settings(Path(model), "last").task] if holds_checkpoints(Path(model)) else None
