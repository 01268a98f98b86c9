"""`vit eval`, `vit predict` and `vit translate`."""

from __future__ import annotations

import csv
import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.cli.compare import baseline_request, compare_and_report
from vit.cli.finetune import finetune_and_evaluate
from vit.cli.parsing import Parser, check_file, check_folder, check_picture, is_main_process
from vit.cli.sources import (
    DATA,
    MODEL,
    add_dtype_option,
    add_model_options,
    add_transfer_options,
    all_images,
    model_options,
    note_random_weights,
    resolve_data,
    settings_for_all_images,
    split_settings,
    transfer_options,
)
from vit.config import check, check_positive

if TYPE_CHECKING:
    from vit.evaluation.transfer_evaluation import TransferOptions
    from vit.hub import OpenedModel


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
    parser.add_argument("--data", help=f"{DATA.partition(' or of')[0]}; default: the run's own")
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
    if unknown and _is_model(unknown[0]):
        several = f"vit compare {args.model} {unknown[0]}"
        raise ValueError(f"{unknown[0]!r} is not expected here: one model is evaluated; for several: {several}")
    overrides += unknown
    check_positive("--image_size", args.image_size)
    check_folder("--output_dir", args.output_dir)
    from vit.hub import source_kind

    transfer = transfer_options(args)
    check(transfer is not None or args.images is None, "--images", args.images, "it has an effect only with --transfer")
    # features of a run can be judged on other data than its own, whose classes its head need not have
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
    data = resolve_data([args.model], args.data, overrides)
    data = data if transfer else all_images(data, [], overrides)
    from vit.data.images import open_test
    from vit.evaluation.head_columns import random_head_size
    from vit.evaluation.model_evaluation import evaluate_model
    from vit.hub import open_models

    classes = random_head_size(open_test(data).source.class_names)
    (opened,) = open_models([args.model], num_classes=classes, **model_options(args))
    note_random_weights(opened)
    folder = args.output_dir or Path("runs/eval")
    device, precision = args.device or "auto", args.precision or "auto"
    metrics = evaluate_model(opened, data, folder, transfer=transfer, device=device, precision=precision)
    _print_metrics(metrics)


def _print_metrics(metrics: dict[str, Any]) -> None:
    """The metrics as JSON; on standard error what is to be said of them, and the file in which they are."""
    from vit.comparison.statistics import wilson_interval

    file = metrics.pop("file")
    print(json.dumps(metrics, indent=2))
    sys.stderr.writelines(f"note: {line}\n" for line in metrics.get("notes", ()))
    sys.stderr.writelines(f"warning: {line}\n" for line in metrics.get("warnings", ()))
    if metrics.get("n_seen") and "top1" in metrics:
        top1, images = metrics["top1"], round(metrics["n_seen"])
        low, high = wilson_interval(round(top1 * images), images)
        interval = f"95 % interval {low:.2%} to {high:.2%}"
        print(f"test top-1 {top1:.2%} of {images:,} images ({interval})", file=sys.stderr)
    for kind, judged in metrics.get("transfer", {}).items():
        protocols = ", ".join(f"{name} {judged[name]:.2%}" for name in ("knn", "linear_probe") if name in judged)
        print(f"frozen features, {kind}: {protocols} of {judged['num_test']:,} test images", file=sys.stderr)
    print(f"see {file}", file=sys.stderr)


def predict(argv: list[str]) -> None:
    parser = Parser(
        prog="vit predict",
        description="Print the most likely classes of each image, or write them into one table (--output), which a "
        "stopped call with the same arguments continues. Memory: 0.75 GB, the weights, and 4 bytes a pixel of the "
        "largest image, 8 where EXIF turns it; one above 179 megapixels is refused. With --output the weights twice, "
        "and a batch of images.",
        answers=dict.fromkeys(
            ("--out", "--output_dir", "--csv", "--json", "--save"),
            "--output FILE writes a .csv, .jsonl or .parquet table; --format csv or json prints",
        ),
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    images = "image files, folders, text files with a path a line, CSV lists, or - for paths on the standard input"
    parser.add_argument("images", nargs="+", metavar="IMAGE", help=images)
    parser.add_argument("--top", type=int, metavar="N", help="classes for each image (default: 5)")
    parser.add_argument("--format", choices=("text", "csv", "json"), help="of what is printed (default: text)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    add_dtype_option(parser)
    group = parser.add_argument_group("a table of many images (--output)")
    group.add_argument("--output", type=Path, metavar="FILE", help="write a .csv, .jsonl or .parquet file")
    group.add_argument("--contact_sheet", type=Path, metavar="PNG", help="draw the least certain images into this file")
    group.add_argument("--precision", help="auto, fp32, bf16 or fp16 (default: auto; printed classes are fp32)")
    group.add_argument("--batch_size", type=int, help="default: 64")
    group.add_argument("--workers", type=int, help="processes that decode (default: 2)")
    add_model_options(parser)
    args = parser.parse_args(argv)
    for option in ("top", "batch_size"):
        check_positive(f"--{option}", getattr(args, option))
    _check_table_options(args)
    from vit.evaluation.classify import find_images
    from vit.hub import open_model, source_kind

    source_kind(args.model)
    paths, notes = find_images(args.images, sys.stdin)  # before a model is opened, which takes longer
    if args.output and (missing := [place for place in args.images if place != "-" and not Path(place).exists()]):
        raise ValueError(
            f"image: there is no file or folder {missing[0]!r}"
        )  # in a list it would be a row with the reason
    for option in ("output", "contact_sheet"):
        _check_beside_inputs(f"--{option}", getattr(args, option), [*map(Path, args.images), *paths])
    if args.output:
        from vit.prediction import check_replaceable

        check_replaceable(args.output)
    opened = open_model(args.model, **model_options(args))
    if args.output is None:
        _predict_and_print(opened, paths, args, notes)
    else:
        _predict_to_file(opened, paths, args)
        _print_notes(notes)
    note_random_weights(opened)


def _check_table_options(args: Namespace) -> None:
    if args.output is None:
        for option in ("contact_sheet", "precision", "batch_size", "workers"):
            value = getattr(args, option)
            check(value is None, f"--{option}", str(value), "it has an effect only with --output")
        return
    check(args.format is None, "--format", args.format, "it is of what is printed; the name of --output decides")
    check(args.workers is None or args.workers >= 0, "--workers", args.workers, "it must be at least 0")
    check_file("--output", args.output)
    check_picture("--contact_sheet", args.contact_sheet)
    from vit.prediction import check_table

    check_table(args.output)


def _check_beside_inputs(option: str, file: Path | None, inputs: Sequence[Path]) -> None:
    """ValueError for a file to be written that is an input, among the images of one, or a run's."""
    if file is None:
        return
    place, parents = file.resolve(), file.resolve().parents
    check(all(place != path.resolve() for path in inputs), option, str(file), "it is one of the inputs")
    among = any(path.is_dir() and path.resolve() in parents for path in inputs)
    check(not among, option, str(file), "it lies among the images; name a place elsewhere")
    in_run = any((folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir() for folder in parents)
    check(not in_run, option, str(file), "it lies in a run's folder; name a file elsewhere")


def _print_notes(notes: Sequence[str]) -> None:
    """Print what was left out or taken for a list, after the predictions: an input that is refused has one line."""
    sys.stderr.writelines(f"note: {line}\n" for line in notes)


def _predict_and_print(opened: OpenedModel, paths: Sequence[Path], args: Namespace, notes: Sequence[str]) -> None:
    from vit.evaluation.classify import classify_images
    from vit.tasks import TASKS

    broken: list[str] = []
    own = None if opened.state is None else TASKS[opened.state["config"]["task"]].function("classify_images")
    most = {} if args.top is None else {"most": args.top}
    found = (own or classify_images)(opened, paths, args.device, on_broken=broken.append, **most)
    _print_classes(found, args.format)
    if len(paths) == len(broken) == 1:
        raise ValueError(broken[0])
    _print_notes(notes)
    if broken:
        sys.stderr.writelines(f"vit: {message}\n" for message in broken)
        raise ValueError(f"{len(broken)} of {len(paths)} images could not be read")


def _predict_to_file(opened: OpenedModel, paths: Sequence[Path], args: Namespace) -> None:
    from vit.engine import keep_freed_memory
    from vit.prediction import predict_to_file

    if args.contact_sheet:
        opened.check_single_label()
    given = {"most": args.top, "batch_size": args.batch_size, "workers": args.workers, "precision": args.precision}
    options = {name: value for name, value in given.items() if value is not None}
    keep_freed_memory()
    try:
        written = predict_to_file(opened, paths, args.output, device=args.device, **options)
    except KeyboardInterrupt:
        print("note: the same command continues where this one was stopped", file=sys.stderr)
        raise
    print(written.text())
    if args.contact_sheet:
        rule = (
            f"there is nothing to draw, for no image could be read; {args.output}, which was written, names the reasons"
        )
        check(written.num_broken < written.num_images, "--contact_sheet", str(args.contact_sheet), rule)
        from vit.prediction import draw_least_certain  # matplotlib takes a moment to import

        draw_least_certain(args.output, args.contact_sheet)
        print(f"the least certain images: {args.contact_sheet}")


def _print_classes(found: Iterable[tuple[Path, Sequence[tuple[str, float]]]], form: str) -> None:
    if form == "json":
        records = [
            {"file": str(path), "classes": [{"class": name, "probability": value} for name, value in classes]}
            for path, classes in found
        ]
        print(json.dumps(records, indent=2, ensure_ascii=False))
    elif form == "csv":
        rows = csv.writer(sys.stdout, lineterminator="\n")
        rows.writerow(("file", "rank", "class", "probability"))
        for path, classes in found:
            rows.writerows((path, rank, name, f"{value:.6f}") for rank, (name, value) in enumerate(classes, 1))
    else:
        for path, classes in found:
            print(path)
            for name, probability in classes:
                print(f"  {probability:6.2%}  {name}")


def translate(argv: list[str]) -> None:
    from vit.tasks.translation import translate as translation

    parser = Parser(
        prog="vit translate",
        description="Translate sentences with a trained translator, each of at most 10,000 characters. Memory: "
        "0.75 GB, the weights, and --beam_size times what one sentence takes: the square of its tokens.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a translator's run or checkpoint folder")
    parser.add_argument("--beam_size", type=int, help="1: greedy (default: as in the run's test)")
    parser.add_argument("--figure", type=Path, help="draw the attention into this PNG; one sentence only")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("sentences", nargs="+", metavar="SENTENCE")
    args = parser.parse_args(argv)
    if args.figure and len(args.sentences) > 1:
        raise ValueError("--figure: it draws one sentence; give only one")
    check_picture("--figure", args.figure)
    results = translation.translate(args.model, args.sentences, args.beam_size, args.device)
    for result in results:
        print(result.text)
    if args.figure:
        translation.draw_alignment(results[0], args.figure)
