"""The models that a command is given: their options, and the runs among them."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.cli.parsing import Parser, is_main_process
from vit.config import DATA_SETS, check
from vit.tasks import TASKS, TaskFolder
from vit.tasks.classification import require_classification
from vit.tasks.classification.config import ClassificationRun

if TYPE_CHECKING:
    from vit.evaluation.transfer_evaluation import TransferOptions
    from vit.hub import OpenedModel

MODEL = (
    "a run or checkpoint folder, a weights file or folder, timm:NAME, torchvision:NAME, hf:NAME_OR_FOLDER, "
    "an architecture's name (random weights), or package.file:FUNCTION, which returns a module"
)
LEAKY = "also compare models that were trained on some of the test images"
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


def model_options(args: Namespace) -> dict[str, Any]:
    """Move the options of `add_model_options` and `add_dtype_option` from the namespace to keywords of `open_model`."""
    return {name: vars(args).pop(name) for name in _OPTIONS if name in args}


def add_dtype_option(parser: Parser, *, several: bool = False) -> None:
    """Add `--dtype`, for commands that compute a model's predictions; `several`: one for each model."""
    options: dict[str, Any] = {"nargs": "+"} if several else {}
    text = "int8: run the blocks' linear layers in eight bits, on x86 processors"
    text += "; one for all models, or one for each" * several
    parser.add_argument("--dtype", choices=("auto", "int8"), default="auto", help=text, **options)


def note_random_weights(opened: OpenedModel) -> None:
    """On standard error, because the result itself does not show it."""
    if opened.provenance.is_random and is_main_process():
        print(opened.summary(), file=sys.stderr)


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
