"""`vit export`: write a model as one file for other programs."""

from __future__ import annotations

from pathlib import Path

from vit.cli.parsing import Parser, check_file
from vit.cli.sources import MODEL, add_model_options, model_options

FORMATS = ("onnx", "torch")


def export(argv: list[str]) -> None:
    what = (
        "Write a classifier as an ONNX or torch.export file for any batch size, run it and compare its logits. Memory: "
    )
    what += "1 GB, and the weights twice, five times for ONNX."
    parser = Parser(prog="vit export", description=what)
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("--format", choices=FORMATS, required=True)
    parser.add_argument("--output", type=Path, required=True, help="a .onnx or .pt2 file; a .json is written beside it")
    add_model_options(parser)
    args = parser.parse_args(argv)
    check_file("--output", args.output)
    from vit.evaluation.export import check_export, export_classifier
    from vit.hub import open_model

    check_export(args.format, args.output)
    print(export_classifier(open_model(args.model, **model_options(args)), args.format, args.output).text())
