"""Commands that measure models: speed, eight bits, deployed files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks.commands.reporting import benchmark_parser, progress, write_result
from vit.cli.output_paths import check_file, check_folder
from vit.cli.parsing import Parser
from vit.config import check, check_positive


def speed(kind: Literal["forward", "step"], argv: list[str]) -> None:
    what = {"forward": "Forward passes", "step": "Training steps (forward, backward, fused AdamW)"}[kind]
    parser = Parser(
        prog=f"python -m benchmarks {kind}",
        description=f"{what} of Vision Transformers against timm's, torchvision's, transformers' and vit-pytorch's, "
        "with the same weights. Finished cells are stored, so that a stopped table continues.",
    )
    names = "Ti, S, B, L (patches of 16, 224 pixels), CIFAR; default: all but L"
    parser.add_argument("--models", nargs="+", metavar="NAME", help=names)
    parser.add_argument("--batch_sizes", nargs="+", type=int, help="default: each model's own")
    parser.add_argument("--dtypes", nargs="+", metavar="TYPE", help="fp32, bf16; default: both")
    parser.add_argument("--peers", nargs="+", metavar="LIBRARY", help="default: all that are installed")
    parser.add_argument("--turns", type=int, help="default: 7")
    parser.add_argument(
        "--compile", action="store_true", default=None, help="all models by torch.compile, on CUDA with its graphs"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cpu")
    parser.add_argument("--output", type=Path, default=Path("runs/model_speed"), help="folder; default: %(default)s")
    args = vars(parser.parse_args(argv))
    output = args.pop("output")
    check_folder("--output", output)
    from benchmarks.model_speed import Table, measure_table

    given = {name: value for name, value in args.items() if value is not None}
    measure_table(Table(kind=kind, **given), output, partial(print, flush=True))
    print(f"see {output}/table.md")


def eight_bits(argv: list[str]) -> None:
    what = "Vision Transformers of eight bits against float ones, onnxruntime's and timm's under torchao, in turns."
    parser = benchmark_parser("eight_bits", what, turns=7)
    parser.add_argument("--models", nargs="+", default=["Ti", "S", "B"], metavar="NAME", help="default: Ti S B")
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[1, 8], help="default: 1 8")
    args = parser.parse_args(argv)
    check_file("--output", args.output)
    from benchmarks.eight_bits import bench_eight_bits, markdown

    result = bench_eight_bits(args.models, args.batch_sizes, turns=args.turns, progress=progress)
    print(markdown(result))
    write_result(result, args.output)


def deployed(argv: list[str]) -> None:
    from vit.cli.images import DATA, all_images, resolve_data
    from vit.cli.models import MODEL, add_model_options, model_options
    from vit.cli.parsing import split_settings

    settings, rest = split_settings(argv)
    what = "Accuracy of a trained model in bfloat16, in eight bits and as ONNX files, against the model in float32."
    parser = benchmark_parser("deployed", what, turns=None)
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("--data", help=DATA)
    parser.add_argument("--images", type=int, help="about this many test images, classes balanced (default: all)")
    parser.add_argument(
        "--sensitivity",
        type=int,
        default=0,
        metavar="IMAGES",
        help="quantise each layer alone too, on this many validation images",
    )
    add_model_options(parser)
    args = parser.parse_args(rest)
    check_file("--output", args.output)
    check_positive("--images", args.images)
    check(args.sensitivity >= 0, "--sensitivity", args.sensitivity, "it must be at least 0")
    from benchmarks.deployed import measure_deployed

    data = all_images(resolve_data([args.model], args.data, settings), [args.model], settings)
    result = measure_deployed(
        args.model,
        data,
        images=args.images,
        sensitivity=args.sensitivity,
        progress=progress,
        **model_options(args),
    )
    write_result(result, args.output)
