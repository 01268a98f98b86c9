"""Commands that measure attention: its backends, what is read from it, other layers in its place."""

from __future__ import annotations

from pathlib import Path

from benchmarks.commands.reporting import benchmark_parser, progress, write_result
from vit.cli.output_paths import check_file
from vit.cli.parsing import Parser
from vit.config import check_positive


def attention(argv: list[str]) -> None:
    parser = benchmark_parser(
        "attention", "Every backend by type, tokens and mask; with --models, auto against sdpa in models."
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], help="default: fp32 bf16")
    parser.add_argument("--tokens", nargs="+", type=int, help="of the backends; default: 65 197 577 1025")
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[8], help="default: 8")
    parser.add_argument("--heads", nargs="+", type=int, help="of the backends; default: 12")
    parser.add_argument(
        "--models", nargs="*", help="Ti, S, B (patches of 16, 224 pixels) or names of vit.list_models(); none: Ti S B"
    )
    args = parser.parse_args(argv)
    check_file("--output", args.output)
    check_positive("--turns", args.turns)
    for option, numbers in (("--tokens", args.tokens), ("--heads", args.heads)):
        for number in numbers or ():
            check_positive(option, number)
        if numbers and args.models is not None:
            raise ValueError(f"{option}: it has no effect with --models, which have their own")
    from benchmarks.attention_speed import CONVENTIONS, HEADS, MODELS, TOKENS, bench_attention, bench_models
    from vit.processor import machine

    common = args.batch_sizes, args.turns, progress
    if args.models is None:
        tokens, heads = args.tokens or TOKENS, args.heads or (HEADS,)
        rows = bench_attention(args.device, args.dtypes, tokens, *common, heads=heads)
    else:
        rows = bench_models(args.device, args.dtypes, args.models or list(MODELS), *common)
    result = {"rows": rows, "turns": args.turns, "machine": machine(args.device), "conventions": CONVENTIONS}
    write_result(result, args.output, show=True)


def analysis(argv: list[str]) -> None:
    parser = benchmark_parser(
        "analysis", "Attention statistics, streamed and from the map of all weights: time, memory."
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16", "fp16"))
    parser.add_argument("--tokens", nargs="+", type=int, default=[196, 1024, 4096], help="square numbers of 4 or more")
    parser.add_argument("--num_heads", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=1)
    _add_backend(parser)
    args = parser.parse_args(argv)
    check_file("--output", args.output)
    for option in ("turns", "num_heads", "batch_size"):
        check_positive(f"--{option}", getattr(args, option))
    for number in args.tokens:
        check_positive("--tokens", number)
    from benchmarks.statistics_cost import bench_statistics

    settings = {name: value for name, value in vars(args).items() if name != "output"}
    result = bench_statistics(**settings, progress=progress)
    write_result(result, args.output, show=True)


def distance(argv: list[str]) -> None:
    what = "Attention distance of a ViT-B/16, streamed and from its maps: time, memory."
    parser = benchmark_parser("distance", what, turns=1)
    parser.add_argument("--sizes", nargs="+", type=int, default=[224, 512, 1024], help="sides of the images in pixels")
    _add_backend(parser)
    args = parser.parse_args(argv)
    check_file("--output", args.output)
    from benchmarks.distance_cost import bench_distance

    result = bench_distance(args.sizes, turns=args.turns, backend=args.backend)
    write_result(result, args.output, show=True)


def _add_backend(parser: Parser) -> None:
    help_ = "of the statistics (default: %(default)s)"
    parser.add_argument("--backend", default="auto", choices=("auto", "streamed", "compiled", "triton"), help=help_)


def capture(argv: list[str]) -> None:
    what = "Difference of outputs rebuilt from captured vectors, by architecture."
    args = benchmark_parser("capture", what, turns=None).parse_args(argv)
    check_file("--output", args.output)
    from benchmarks.capture_proof import prove_capture, table

    rows = prove_capture()
    print(table(rows))
    write_result(rows, args.output)


def layers(argv: list[str]) -> None:
    what = "Self-attention, recurrent, convolution and restricted self-attention: time against the number of tokens."
    parser = benchmark_parser("layers", what)
    parser.add_argument("--figure", type=Path, help="draw the times into this PNG, with the numbers beside it")
    args = parser.parse_args(argv)
    for option in ("output", "figure"):
        check_file(f"--{option}", getattr(args, option))
    from benchmarks.layer_cost import draw_layers, measure_layers

    result = measure_layers(args.turns)
    write_result(result, args.output, show=True)
    if args.figure:
        draw_layers(result, args.figure)
