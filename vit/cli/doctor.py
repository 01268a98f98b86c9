"""`vit doctor`: the effect of preprocessing mistakes on a model's predictions."""

from __future__ import annotations

from pathlib import Path

from vit.cli.images import DATA, find_images, own_test_images
from vit.cli.models import MODEL, add_model_options, model_options
from vit.cli.output_paths import check_file
from vit.cli.parsing import Parser, split_settings
from vit.config import check_positive

_DESCRIPTION = """\
Make one common preprocessing mistake after another on the same images and report its effect: accuracy (if the images
have labels that the model knows), changed predictions, changed logits; of a multi-label model mean average precision
and changed sets of labels. Settings of the images: --data.root, …
Memory: 0.75 GB, the weights, and a batch of images (--data.eval_batch_size); the logits of two mistakes."""


def doctor(argv: list[str]) -> None:
    parser = Parser(prog="vit doctor", description=_DESCRIPTION)
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("--data", nargs="+", help=f"{DATA}; default: the run's own")
    parser.add_argument(
        "--images", type=int, default=256, help="about this many, at least one of each class (default: %(default)s)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    add_model_options(parser)
    settings, rest = split_settings(argv)
    args = parser.parse_args(rest)
    check_file("--output", args.output)
    check_positive("--images", args.images)
    from vit.evaluation.doctor import choose_images, diagnose_preprocessing, open_images
    from vit.evaluation.head_columns import random_head_size
    from vit.hub import open_models, source_kind
    from vit.runs import write_json

    source_kind(args.model)
    own = own_test_images([args.model], args.data, settings, args.select)
    if own:
        images = choose_images(*own, args.images)
    else:
        images = open_images(find_images([args.model], args.data, settings, labelled=True), args.images)
    classes = random_head_size(images.split.source.class_names) if images.is_labelled else None
    (opened,) = open_models([args.model], num_classes=classes, **model_options(args))
    diagnosis = diagnose_preprocessing(opened, images, device=args.device)
    print(diagnosis.table())
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.output, diagnosis.facts())
