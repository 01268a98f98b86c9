"""Commands that measure the way from files to batches, alone and in whole epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from benchmarks.commands.reporting import progress, write_result
from vit.cli.output_paths import check_file
from vit.cli.parsing import chosen_config, run_parser
from vit.tasks.classification import require_classification


def pipeline(kind: Literal["data", "epoch"], argv: list[str]) -> None:
    from vit.settings import resolve_run

    what = {"data": "From source to augmented batch", "epoch": "Whole training epochs, data included"}[kind]
    text = f"{what}: against a DataLoader of torchvision v2 transforms on PIL and against timm's loader, in turns."
    parser = run_parser(kind, text)
    parser.prog = f"python -m benchmarks {kind}"
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 1, 2], help="of every loader (default: 0 1 2)")
    parser.add_argument("--peers", nargs="+", default=["torchvision", "timm"], metavar="LIBRARY", help="default: both")
    parser.add_argument("--turns", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON, and as Markdown beside it")
    args, overrides = parser.parse_known_args(argv)
    check_file("--output", args.output)
    if args.output and args.output.suffix == ".md":
        raise ValueError(f"--output: {str(args.output)!r} is the name of the Markdown file; give that of the JSON file")
    name = chosen_config(args.config, overrides)
    config = require_classification(resolve_run(name, overrides).config, "--config", name)
    from benchmarks.pipeline_speed import PipelineSpec, bench_data, bench_epoch
    from benchmarks.pipeline_table import markdown

    spec = PipelineSpec(workers=args.workers, peers=args.peers, turns=args.turns)
    result = {"data": bench_data, "epoch": bench_epoch}[kind](config, spec, progress)
    print(markdown(result))
    write_result(result, args.output)
    if args.output:
        args.output.with_suffix(".md").write_text(markdown(result))
