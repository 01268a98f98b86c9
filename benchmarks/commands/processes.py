"""Commands that measure whole processes: memory, growth, transfer."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.commands.reporting import benchmark_parser, progress, write_result
from vit.cli.output_paths import check_file, check_folder
from vit.cli.parsing import Parser
from vit.config import check_positive, nearest


def memory(argv: list[str]) -> None:
    what = (
        "Peak memory of whole commands on what is large, with their bounds, and of commands with freed memory kept and "
        "returned. On Linux."
    )
    parser = benchmark_parser("memory", what, turns=2)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="default: all")
    args = parser.parse_args(argv)
    check_file("--output", args.output)
    check_positive("--turns", args.turns)
    from benchmarks.memory import LARGE, REPEATED, bench_memory

    names = [*LARGE, *REPEATED]
    for name in args.only or ():
        if name not in names:
            raise ValueError(f"--only: {name!r} is not valid: {nearest(name, names)}")
    if args.only and "evaluation" in args.only and "growing" not in args.only:
        raise ValueError("--only: 'evaluation' is not valid alone: it evaluates the run of 'growing'")
    with TemporaryDirectory() as folder:
        result = bench_memory(args.only or names, args.turns, Path(folder), progress)
    write_result(result, args.output, show=True)


def growth(argv: list[str]) -> None:
    text = (
        "Time and memory of a Vision Transformer against tokens, batch and depth; images/s of two processes over one."
    )
    parser = Parser(prog="python -m benchmarks growth", description=text)
    parser.add_argument("--turns", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--largest_tokens", type=int, default=4096, help="default: %(default)s")
    parser.add_argument("--processes", type=int, default=2, help="compared with one; 0: none (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/growth"), help="folder (default: %(default)s)")
    args = parser.parse_args(argv)
    check_folder("--output", args.output)
    from benchmarks.growth import draw_growth, measure_growth

    result = measure_growth(args.turns, args.processes, progress, largest_tokens=args.largest_tokens)
    draw_growth(result, args.output / "growth.png")
    print(f"measured on {json.dumps(result['machine'])}")
    print(f"{args.output}/growth.png, and its numbers beside it")


def transfer(argv: list[str]) -> None:
    what = "vit eval --transfer against the usual loop with timm and scikit-learn: whole processes, time and memory."
    parser = benchmark_parser("transfer", what, turns=1)
    parser.add_argument("--source", required=True, help="a pretrained ViT with ImageNet's mean and std, as DINOv2")
    parser.add_argument(
        "--timm_name", default="vit_small_patch14_dinov2", help="its name in timm; default: %(default)s"
    )
    parser.add_argument("--data", type=Path, required=True, help="a folder with train/CLASS/ and test/CLASS/")
    parser.add_argument("--train_images", type=int, default=8000)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--image_size", type=int, default=112)
    args = parser.parse_args(argv)
    check_file("--output", args.output)
    for option in ("turns", "train_images", "images", "image_size"):
        check_positive(f"--{option}", getattr(args, option))
    from benchmarks.transfer_cost import bench_transfer

    sizes = args.train_images, args.images, args.image_size
    write_result(bench_transfer(args.source, args.timm_name, args.data, *sizes, args.turns), args.output, show=True)
