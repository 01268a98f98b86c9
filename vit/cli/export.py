"""`vit export`: write a model as one file for other programs."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from vit.cli.images import LABELLED, all_images, resolve_data
from vit.cli.models import MODEL, add_dtype_option, add_model_options, model_options, note_random_weights
from vit.cli.output_paths import check_file, check_outside_run
from vit.cli.parsing import Parser, split_settings
from vit.config import check, check_positive
from vit.deployment.errors import TOLERANCES

if TYPE_CHECKING:
    from vit.deployment import Trial
    from vit.hub import OpenedModel

FORMATS = ("onnx", "torch", "compiled")
_DESCRIPTION = """\
Write a classifier as a file for other programs. It takes any number of uint8 images of any size, preprocesses them as
`vit eval` does and returns probabilities. Formats: ONNX, torch.export, or code compiled for this machine's processor by
torch's AOTInductor, which runs fastest and takes minutes to write. Before the file gets its name, its accuracy is
compared with the model's on the validation images of the run or the test images of --data; if they differ by more than
--tolerance, it is removed (exit code 1). To continue a stopped comparison, run the same command again. Memory: 1 GB,
and the weights twice, five times for ONNX, six times for a compiled file."""


def export(argv: list[str]) -> None:
    settings, rest = split_settings(argv)
    parser = Parser(prog="vit export", description=_DESCRIPTION)
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("--format", choices=FORMATS, required=True)
    parser.add_argument("--output", type=Path, required=True, help="a .onnx or .pt2 file; a .json is written beside it")
    parser.add_argument("--logits", action="store_true", help="take prepared images, and give logits")
    parser.add_argument(
        "--precision",
        choices=("fp32", "bf16"),
        default="fp32",
        help="arithmetic of a compiled file; bf16 is faster only on processors with bfloat16 instructions "
        "(default: %(default)s)",
    )
    parser.add_argument("--data", help=f"{LABELLED}; default: the run's validation images, if these are here")
    parser.add_argument("--images", type=int, help="about this many of them (default: all)")
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="POINTS",
        help="largest difference in accuracy with which the file is kept (default: "
        f"{100 * TOLERANCES['fp32']:g}, of bfloat16 and eight bits {100 * TOLERANCES['int8']:g})",
    )
    add_dtype_option(parser)
    add_model_options(parser)
    args = parser.parse_args(rest)
    check_file("--output", args.output)
    check_outside_run("--output", args.output, args.model)
    check_positive("--images", args.images)
    given = args.tolerance is not None
    check(not given or 0 <= args.tolerance <= 100, "--tolerance", args.tolerance, "it is in points, from 0 to 100")
    from vit.data.images import MissingImages
    from vit.deployment.export import check_export, export_classifier
    from vit.hub import open_model

    check_export(args.format, args.output)
    opened = open_model(args.model, **model_options(args))
    missing = ""
    try:
        trial = _trial(opened, args, settings)
    except MissingImages as error:  # as where a run has moved to another machine
        if args.data or settings or (args.images, args.tolerance) != (None, None):
            raise
        trial, missing = None, str(error)
    note_random_weights(opened)
    options = {"logits": args.logits, "precision": args.precision, "trial": trial}
    print(export_classifier(opened, args.format, args.output, **options).text())
    if missing:
        print(f"note: the run's own images are not here: {missing}", file=sys.stderr)


def _trial(opened: OpenedModel, args: Namespace, settings: list[str]) -> Trial | None:
    """The images that file and model are asked about; None where neither a run nor --data names any.

    ValueError for settings without effect, and for images that the model has no classes for.
    """
    from vit.data.images import open_test, open_training
    from vit.data.splits import balanced_subset
    from vit.deployment import Decision, Trial
    from vit.evaluation.head_columns import head_columns

    is_run = opened.state is not None
    if not args.data and (not is_run or opened.multilabel):
        rule = "it needs images with one class each" if is_run else "it needs --data"
        check(not settings, settings[0] if settings else "", "", rule)
        for option in () if is_run else ("images", "tolerance"):
            value = getattr(args, option)
            check(value is None, f"--{option}", value, rule)
        return _multilabel_trial(opened, args) if is_run else None
    data = resolve_data([args.model], args.data, settings)
    if args.data:
        split, images = open_test(all_images(data, [args.model], settings)), f"test images of {args.data}"
    else:
        split, images = open_training(data)[1], f"validation images of {args.model}"
    chosen = balanced_subset(split, args.images, stream="export")
    columns = head_columns(opened, split.source.class_names)
    return Trial(chosen, Decision(columns), images, _tolerance(opened, args))


def _tolerance(opened: OpenedModel, args: Namespace) -> float:
    """A fraction."""
    number = args.precision if opened.dtype == "auto" else opened.dtype
    return TOLERANCES[number] if args.tolerance is None else float(args.tolerance) / 100


def _multilabel_trial(opened: OpenedModel, args: Namespace) -> Trial:
    """The validation images of a multi-label run, by whose labels its thresholds were chosen."""
    import numpy as np

    from vit.data.splits import balanced_subset
    from vit.deployment import Decision, Trial
    from vit.tasks.multilabel.table import open_trained

    assert opened.state is not None
    chosen = balanced_subset(open_trained(opened.state)[1], args.images, stream="export")
    thresholds = np.array(opened.thresholds, dtype=np.float32)
    if args.logits:
        with np.errstate(divide="ignore"):  # a threshold of 0 or 1
            thresholds = np.log(thresholds / (1 - thresholds))
    decision = Decision(range(opened.num_classes), thresholds)
    return Trial(chosen, decision, f"validation images of {args.model}", _tolerance(opened, args))
