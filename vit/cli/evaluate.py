"""`vit eval`: a model's metrics on a test set."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.cli.compare import baseline_request, compare_and_report
from vit.cli.finetune import finetune_and_evaluate
from vit.cli.images import LABELLED, all_images, resolve_data, settings_for_all_images
from vit.cli.models import (
    MODEL,
    add_dtype_option,
    add_model_options,
    add_transfer_options,
    model_options,
    note_random_weights,
    transfer_options,
)
from vit.cli.output_paths import check_folder
from vit.cli.parsing import Parser, is_main_process, split_settings
from vit.config import check, check_positive

if TYPE_CHECKING:
    from vit.evaluation.transfer_evaluation import TransferOptions


def evaluate(argv: list[str]) -> None:
    if "--finetune" in argv:
        return finetune_and_evaluate(argv)
    from vit.launcher import start_missing_processes

    start_missing_processes(["eval", *argv])
    parser = Parser(
        prog="vit eval",
        description="Evaluate a model on a test set. --data.… settings choose the data, --search.… the beam search. "
        "Memory: 0.75 GB, the weights, and a batch of images (--data.eval_batch_size). "
        "`vit eval MODEL --finetune --data DATA` fine-tunes it first; `vit eval --finetune --help`.",
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("--data", help=f"{LABELLED}; default: the run's own")
    parser.add_argument("--output_dir", type=Path, help="default: predictions/ of the run, or runs/eval")
    parser.add_argument("--device", help="auto, cpu, cuda or mps (default: the run's, else auto)")
    parser.add_argument("--precision", help="auto, fp32, bf16 or fp16 (default: the run's, else auto)")
    add_dtype_option(parser)
    parser.add_argument("--baseline", metavar="MODEL", help="also compare with this model")
    add_transfer_options(parser)
    parser.add_argument("--images", type=int, help="with --transfer: about this many test images (default: all)")
    add_model_options(parser)
    overrides, rest = split_settings(argv)
    args, unknown = parser.parse_known_args(rest)
    from vit.hub import source_kind

    if unknown and _is_model(unknown[0]):
        source_kind(args.model)  # else images were named before the model
        several = f"vit compare {args.model} {unknown[0]}"
        raise ValueError(f"{unknown[0]!r} is not expected here: one model is evaluated; for several: {several}")
    overrides += unknown
    check_positive("--image_size", args.image_size)
    transfer = transfer_options(args)
    check(transfer is not None or args.images is None, "--images", args.images, "it has an effect only with --transfer")
    # features of a run can be evaluated on other data than its own, whose classes its head need not have
    if source_kind(args.model) == "run" and not (transfer and args.data):
        _evaluate_run(args, overrides, transfer)
    else:
        _evaluate_model(args, overrides, transfer)
    return None


def _is_model(word: str) -> bool:
    from vit.hub import source_kind

    try:
        return not word.startswith("-") and source_kind(word) is not None
    except ValueError:
        return False


def _evaluate_run(args: Namespace, overrides: list[str], transfer: TransferOptions | None) -> None:
    from vit.comparison.compare import open_comparison
    from vit.hub import check_options
    from vit.tasks.task import EvalRequest
    from vit.trained_runs import evaluate_checkpoint

    options = model_options(args)
    check_options([args.model], options)
    request = EvalRequest(
        checkpoint=Path(args.model),
        select=options["select"],
        weights=options["weights"],
        image_size=options["image_size"],
        dtype=options["dtype"],
        transfer=transfer,
        output_dir=args.output_dir,
    )
    check_folder("--output_dir", request.folder)
    for option, setting in (("data", "data"), ("device", "device"), ("precision", "train.precision")):
        if getattr(args, option):
            overrides = [f"--{setting}", getattr(args, option), *overrides]
    if transfer is None:
        overrides += settings_for_all_images(Path(args.model), options["select"], overrides)
    # opened before the evaluation, so that a baseline that cannot be compared is reported at once
    comparison = open_comparison(baseline_request(request, overrides, args.baseline)) if args.baseline else None
    metrics = evaluate_checkpoint(request, overrides)
    if is_main_process():
        _print_metrics(metrics)
    if comparison:
        compare_and_report(comparison)


def _evaluate_model(args: Namespace, overrides: list[str], transfer: TransferOptions | None) -> None:
    if args.baseline:
        raise ValueError(f"--baseline: it works for runs only; use `vit compare {args.model} {args.baseline}`")
    folder = args.output_dir or Path("runs/eval")
    check_folder("--output_dir", folder)
    data = resolve_data([args.model], args.data, overrides)
    data = data if transfer else all_images(data, [], overrides)
    from vit.data.images import open_test
    from vit.evaluation.head_columns import random_head_size
    from vit.evaluation.model_evaluation import evaluate_model
    from vit.hub import open_models

    classes = random_head_size(open_test(data).source.class_names)
    (opened,) = open_models([args.model], num_classes=classes, **model_options(args))
    note_random_weights(opened)
    device, precision = args.device or "auto", args.precision or "auto"
    metrics = evaluate_model(opened, data, folder, transfer=transfer, device=device, precision=precision)
    _print_metrics(metrics)


def _print_metrics(metrics: dict[str, Any]) -> None:
    """Print the metrics as JSON, and their notes, warnings and file to standard error."""
    from vit.evaluation.statistics import accuracy_in_words

    file = metrics.pop("file")
    print(json.dumps(metrics, indent=2))
    sys.stderr.writelines(f"note: {line}\n" for line in metrics.get("notes", ()))
    sys.stderr.writelines(f"warning: {line}\n" for line in metrics.get("warnings", ()))
    if metrics.get("n_seen") and "top1" in metrics:
        print(accuracy_in_words(metrics["top1"], round(metrics["n_seen"])), file=sys.stderr)
    for kind, evaluated in metrics.get("transfer", {}).items():
        protocols = ", ".join(f"{name} {evaluated[name]:.2%}" for name in ("knn", "linear_probe") if name in evaluated)
        print(f"frozen features, {kind}: {protocols} of {evaluated['num_test']:,} test images", file=sys.stderr)
    print(f"see {file}", file=sys.stderr)
