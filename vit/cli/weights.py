"""`vit convert`: write a model's weights in another library's layout."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

from vit.cli.export import FORMATS
from vit.cli.models import MODEL, add_model_options, model_options
from vit.cli.output_paths import check_folder, check_outside_run
from vit.cli.parsing import Parser

TARGETS = ("timm", "torchvision", "hf", "npz")


def _target(word: str) -> str:
    """The word itself, unless it is a format of `vit export`."""
    if word in FORMATS:
        instead = f"vit export MODEL --format {word} --output FILE"
        raise ArgumentTypeError(f"{word!r} is not a library's weight layout; write such a file by: {instead}")
    return word


def convert(argv: list[str]) -> None:
    what = (
        "Write a model's weights as another library names them. Memory: 0.75 GB, and the weights twice; with --verify "
    )
    what += "up to four times, because the library's own model and the source are in memory as well."
    parser = Parser(prog="vit convert", description=what)
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("--to", type=_target, choices=TARGETS, required=True)
    parser.add_argument("--output", type=Path, help="the file to write; hf: the folder")
    parser.add_argument("--verify", action="store_true", help="compare with the library's own model on random images")
    add_model_options(parser)
    args = parser.parse_args(argv)
    if not (args.output or args.verify):
        raise ValueError("--output: there is nothing to do; give --output, --verify or both")
    check_folder("--output", args.output and args.output.parent)
    check_outside_run("--output", args.output, args.model)

    from vit.hub import open_model, source_kind
    from vit.hub.preprocessing import model_of_size
    from vit.models.initialization import perturb_weights
    from vit.weights.convert import check_output, convert_model, verify_conversion
    from vit.weights.huggingface import HowUsed
    from vit.weights.sources import open_source

    if args.output:
        check_output(args.to, args.output, args.model)
    options = model_options(args)
    kind = source_kind(args.model)
    if kind in ("file", "folder", "library") and options["implementation"] == "auto":
        options["implementation"] = "ours"  # only our model has the names that are converted
    opened = open_model(args.model, **options)
    if kind == "architecture":
        perturb_weights(opened.model)  # tensors with equal initial values would hide a wrong name
    model = opened.model
    if options["image_size"] is not None:
        model = model_of_size(model, opened.preprocessing.image_size)
    conversion = convert_model(model, args.to)  # before anything is said, for it may refuse
    print(opened.summary())
    note = f"; {conversion.note}" if conversion.note else ""
    print(f"{args.to}: {len(conversion.tensors)} tensors, from {len(model.state_dict())} of ours{note}")
    if args.verify:
        own = model is opened.model and not opened.provenance.is_random
        compared = kind in ("file", "folder", "library") and own
        source = open_source(args.model) if compared else None
        for line in verify_conversion(conversion, source, opened.report):
            print(line)
    if args.output:
        use = HowUsed(opened.stated_preprocessing, opened.class_names, opened.multilabel)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        conversion.write(args.output, use)
        if args.to == "hf" and (said := use.processor()[1]):
            print(said)
        print(f"written: {args.output}")
