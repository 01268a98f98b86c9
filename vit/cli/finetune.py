"""`vit compare --finetune` and `vit eval --finetune`: fine-tune pretrained models, and compare or evaluate them."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.cli.images import LABELLED
from vit.cli.models import LEAKY
from vit.cli.output_paths import check_folder
from vit.cli.parsing import Parser, add_at_once_option, split_settings

if TYPE_CHECKING:
    from vit.experiments.finetuning import FinetuneRequest

_DESCRIPTION = """\
Fine-tune any mix of pretrained Vision Transformers and ResNets on the same training images, for the same number of
images seen, with one recipe for ViTs and one for ResNets, and compare them on the test images (`vit compare` of the
runs in DIR/runs). Every model gets a new head, even if its own has the data's classes (--model.new_head false keeps
it). Image size and normalization are each model's own. Every training setting can be given as --section.setting, for
all models; settings that differ between ViTs and ResNets go into the recipes. To continue a stopped command, run it
again; finished models are not trained again. Memory: that of `vit train` for the largest model, times --at_once; then
the weights of all models."""
_DESCRIPTION_OF_ONE = """\
Fine-tune a pretrained Vision Transformer or ResNet and evaluate it on the test images. `vit compare --finetune` does so
with several, and with the same --output_dir takes over what was trained here. The model gets a new head
(--model.new_head false keeps its own). Every training setting can be given as --section.setting. To continue a stopped
command, run it again. Memory: that of `vit train`, times --at_once."""


def finetune_and_compare(argv: list[str]) -> None:
    settings, rest = split_settings(argv)
    args = _compare_parser().parse_args(rest)
    from vit.comparison.metrics import Resampling
    from vit.comparison.report import write_report
    from vit.comparison.tables import summary
    from vit.experiments.finetuning import compare_finetuned
    from vit.experiments.finetuning_table import finetuning_summary, finetuning_tables

    resampling = Resampling(args.resamples, args.seed or 0)
    options = {"leaky": args.leaky, "corruptions": args.corruptions, "speed": args.speed, "resampling": resampling}
    request = _request(args, settings, args.models, **options)
    comparison = compare_finetuned(request)
    write_report(comparison, request.output_dir, finetuning_tables(comparison.result))
    print(finetuning_summary(comparison.result))
    print(summary(comparison.result))
    print(f"see {request.output_dir}/comparison.html")


def finetune_and_evaluate(argv: list[str]) -> None:
    settings, rest = split_settings(argv)
    parser = Parser(prog="vit eval --finetune", description=_DESCRIPTION_OF_ONE)
    parser.add_argument("model", metavar="MODEL", help=_MODEL)
    _add_options(parser)
    args = parser.parse_args(rest)
    from vit.experiments.finetuning import evaluate_finetuned

    request = _request(args, settings, [args.model])
    with redirect_stdout(sys.stderr):  # what training says; the result alone is JSON
        result = evaluate_finetuned(request)
    print(json.dumps(result, indent=2))
    sys.stderr.writelines(f"warning: {line}\n" for line in result["warnings"])
    print(f"see {request.output_dir}", file=sys.stderr)


def _request(args: Namespace, settings: list[str], models: list[str], **options: Any) -> FinetuneRequest:
    check_folder("--output_dir", args.output_dir)
    if args.data is None and not any(word.split("=")[0] == "--data.name" for word in settings):
        raise ValueError("--data: required: the images to fine-tune and test on, a data set's name or a folder")
    settings = [*settings]
    for option in ("data", "epochs", "seed", "device"):
        if getattr(args, option) is not None:
            settings += [f"--{option}={getattr(args, option)}"]
    if args.precision is not None:
        settings += [f"--train.precision={args.precision}"]
    from vit.experiments.finetuning import FinetuneRequest

    return FinetuneRequest(
        models=models,
        output_dir=args.output_dir,
        settings=settings,
        recipes={"vit": args.vit_recipe, "resnet": args.resnet_recipe},
        architecture=args.architecture,
        image_sizes=args.image_size,
        mean=args.mean,
        std=args.std,
        num_seeds=args.seeds,
        at_once=args.at_once,
        **options,
    )


_MODEL = "weights file or folder, timm:NAME, torchvision:NAME, hf:NAME_OR_FOLDER, or a run folder"


def _compare_parser() -> Parser:
    parser = Parser(prog="vit compare --finetune", description=_DESCRIPTION)
    parser.add_argument("models", nargs="+", metavar="MODEL", help=_MODEL)
    _add_options(parser)
    parser.add_argument("--corruptions", action="store_true", help="also on corrupted test images, 76 times as many")
    parser.add_argument("--speed", action="store_true", help="also measure images per second and peak memory")
    parser.add_argument("--leaky", action="store_true", help=LEAKY)
    parser.add_argument("--resamples", type=int, default=10_000, help="bootstrap resamples (default: %(default)s)")
    return parser


def _add_options(parser: Parser) -> None:
    parser.add_argument("--finetune", action="store_true", required=True)
    parser.add_argument("--data", help=LABELLED)
    parser.add_argument("--epochs", type=int, help="default: the recipes'")
    parser.add_argument("--architecture", metavar="NAME", help="for weights files that do not determine it")
    parser.add_argument("--image_size", type=int, nargs="+", default=(), help="other sizes than the models' own")
    text = "normalization in [0, 1], for models whose source does not state one"
    parser.add_argument("--mean", type=float, nargs=3, metavar="M", help=text)
    parser.add_argument("--std", type=float, nargs=3, metavar="S")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from --seed on (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="default: the recipes'; it seeds the bootstrap too")
    add_at_once_option(parser)
    recipe = "YAML file, or the name of a packaged configuration (default: %(default)s)"
    parser.add_argument("--vit_recipe", default="finetune_your_images", help=recipe)
    parser.add_argument("--resnet_recipe", default="finetune_your_images_resnet", help=recipe)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/finetuning"), help="default: %(default)s")
    parser.add_argument("--device", help="auto, cpu or cuda")
    parser.add_argument("--precision", help="auto, fp32, bf16 or fp16")
