"""`vit export`: a model as one file for other programs. Knows no tensors."""

from __future__ import annotations

from pathlib import Path

from vit.cli.parsing import Parser, check_file

FORMATS = ("onnx", "torch")


def export(words: list[str]) -> None:
    what = "Write a classifier as an ONNX or torch.export file for any batch size, run it and compare its logits."
    parser = Parser(prog="vit export", description=what)
    parser.add_argument("model", metavar="MODEL", help="a run, timm:NAME, torchvision:NAME or hf:NAME")
    parser.add_argument("--format", choices=FORMATS, required=True)
    parser.add_argument("--output", type=Path, required=True, help="a .onnx or .pt2 file; a .json is written beside it")
    parser.add_argument("--select", choices=("best", "last"), default="best", help="checkpoint of a run of ours")
    parser.add_argument("--random_weights", action="store_true", help="build the library's model without weights")
    known = parser.parse_args(words)
    check_file("--output", known.output)
    from vit.evaluation.class_maps import NUM_CLASSES
    from vit.evaluation.comparison.contestants import load_contestants
    from vit.evaluation.comparison.libraries import Head
    from vit.evaluation.export import check_export, export_classifier

    check_export(known.format, known.output)
    head = Head(NUM_CLASSES) if known.random_weights else None
    (contestant,) = load_contestants([known.model], select=known.select, random_head=head)
    print(export_classifier(contestant, known.format, known.output).text())
