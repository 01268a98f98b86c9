"""`vit predict`: the likeliest classes of images, printed or as a table."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from vit.cli.models import MODEL, add_dtype_option, add_model_options, model_options, note_random_weights
from vit.cli.output_paths import check_file, check_picture
from vit.cli.parsing import Parser
from vit.config import check, check_positive

if TYPE_CHECKING:
    from vit.hub import OpenedModel
    from vit.prediction.rows import Classes


def predict(argv: list[str]) -> None:
    parser = Parser(
        prog="vit predict",
        description="Print the most likely classes of each image, or write them to one table (--output); to continue a "
        "stopped table, run the same command again. Memory: 0.75 GB, the weights, and 4 bytes a pixel of the "
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
    parser.add_argument(
        "--top",
        type=int,
        metavar="N",
        help="classes for each image (default: 5; of a multi-label model, all that reach their threshold)",
    )
    parser.add_argument("--format", choices=("text", "csv", "json"), help="of the printed output (default: text)")
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
    from vit.data.image_paths import find_image_paths
    from vit.hub import open_model, source_kind

    source_kind(args.model)
    for stream in (sys.stdin, sys.stdout):  # names of files are bytes to the system
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")
    paths, notes = find_image_paths(args.images, sys.stdin)  # before a model is opened, which takes longer
    if args.output and (missing := [place for place in args.images if place != "-" and not Path(place).exists()]):
        # one that is missing in a list is a row of the table, with the reason
        raise ValueError(f"image: there is no file or folder {missing[0]!r}")
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
    check(args.format is None, "--format", args.format, "it is for printed output; the ending of --output decides")
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


def _predict_and_print(opened: OpenedModel, paths: Sequence[Path], args: Namespace, notes: Sequence[str]) -> None:
    from vit.prediction.classify import predicted_classes
    from vit.progress import tracked

    broken: list[str] = []
    is_seen = sys.stdout.isatty() and args.format != "json"  # a bar would stand between the lines
    images: Iterable[Path] = paths if is_seen else tracked(paths, "predict", len(paths), unit="img", leave=False)
    _print_classes(predicted_classes(opened, images, args.device, args.top, broken.append), args.format)
    if len(paths) == len(broken) == 1:
        raise ValueError(broken[0])
    _print_notes(notes)
    if broken:
        sys.stderr.writelines(f"vit: {message}\n" for message in broken)
        raise ValueError(f"{len(broken)} of {len(paths)} images could not be read")


def _print_classes(found: Iterable[tuple[Path, Classes]], form: str) -> None:
    """Print the classes of every image when they are known; as JSON, which is one list, when all are."""
    if form == "json":
        records = [
            {"file": str(path), "classes": [{"class": name, "probability": value} for name, value in classes]}
            for path, classes in found
        ]
        text = json.dumps(records, indent=2, ensure_ascii=False)
        print(text if _is_utf8(text) else json.dumps(records, indent=2))  # which escapes what is no text
    elif form == "csv":
        from vit.runs import write_csv_rows

        write_csv_rows(sys.stdout, [("file", "rank", "class", "probability")])
        for path, classes in found:
            rows = [(path, rank, name, f"{value:.6f}") for rank, (name, value) in enumerate(classes, 1)]
            write_csv_rows(sys.stdout, rows)
            sys.stdout.flush()
    else:
        for path, classes in found:
            print(path, *(f"  {probability:6.2%}  {name}" for name, probability in classes), sep="\n", flush=True)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _predict_to_file(opened: OpenedModel, paths: Sequence[Path], args: Namespace) -> None:
    from vit.engine import keep_freed_memory
    from vit.prediction import predict_to_file

    if args.contact_sheet:
        opened.check_single_label()
    given = {"top_k": args.top, "batch_size": args.batch_size, "workers": args.workers, "precision": args.precision}
    options = {name: value for name, value in given.items() if value is not None}
    keep_freed_memory()
    try:
        written = predict_to_file(opened, paths, args.output, device=args.device, **options)
    except KeyboardInterrupt:
        print("note: the same command continues where this one was stopped", file=sys.stderr)
        raise
    print(written.text())
    if args.contact_sheet:
        rule = f"there is nothing to draw: no image could be read; {args.output}, which was written, has the reasons"
        check(written.num_broken < written.num_images, "--contact_sheet", str(args.contact_sheet), rule)
        from vit.prediction import draw_least_certain  # matplotlib takes a moment to import

        draw_least_certain(args.output, args.contact_sheet)
        print(f"the least certain images: {args.contact_sheet}")


def _print_notes(notes: Sequence[str]) -> None:
    """Print what was left out or taken for a list, after the predictions: an input that is refused has one line."""
    sys.stderr.writelines(f"note: {line}\n" for line in notes)
