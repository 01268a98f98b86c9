"""`vit bench data`, `epoch` and `growth`, `vit profile`: where the time of a run goes. Knows no tensors."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Literal

from vit.cli.parsing import Parser, check_file, check_folder, run_parser
from vit.config import check_positive


def pipeline(kind: Literal["data", "epoch"], words: list[str]) -> None:
    """A run's loading, or its whole epochs, against other libraries'."""
    from vit.config import ClassificationRun
    from vit.settings import resolve_run

    what = {"data": "From source to augmented batch", "epoch": "Whole training epochs, data included"}[kind]
    text = f"{what}: against a DataLoader of torchvision v2 transforms on PIL and against timm's loader, in turns."
    parser = run_parser(f"bench {kind}", text)
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 1, 2], help="of every side (default: 0 1 2)")
    parser.add_argument("--peers", nargs="+", default=["torchvision", "timm"], metavar="LIBRARY", help="default: both")
    parser.add_argument("--turns", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON, and as Markdown beside it")
    known, overrides = parser.parse_known_args(words)
    check_file("--output", known.output)
    if known.output and known.output.suffix == ".md":
        raise ValueError(f"--output: {str(known.output)!r} is where the Markdown goes; give the JSON's name")
    config = resolve_run(known.config, overrides).config
    if not isinstance(config, ClassificationRun):
        raise ValueError(f"--config: {str(known.config)!r} is not valid: `bench {kind}` times the loading of images")
    from vit.experiments.pipeline_speed import Comparison, bench_data, bench_epoch
    from vit.experiments.pipeline_table import markdown
    from vit.runs import write_json

    comparison = Comparison(workers=known.workers, peers=known.peers, turns=known.turns)
    bench = {"data": bench_data, "epoch": bench_epoch}[kind]
    result = bench(config, comparison, tell)
    print(markdown(result))
    if known.output:
        known.output.parent.mkdir(parents=True, exist_ok=True)
        write_json(known.output, result)
        known.output.with_suffix(".md").write_text(markdown(result))


def growth(words: list[str]) -> None:
    """What tokens, batch, depth and processes cost."""
    text = (
        "Time and memory of a Vision Transformer against tokens, batch and depth; images/s of two processes over one."
    )
    parser = Parser(prog="vit bench growth", description=text)
    parser.add_argument("--turns", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--largest_tokens", type=int, default=4096, help="default: %(default)s")
    parser.add_argument("--processes", type=int, default=2, help="compared with one; 0: none (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/growth"), help="folder (default: %(default)s)")
    known = parser.parse_args(words)
    check_folder("--output", known.output)
    from vit.experiments.growth import draw_growth, measure_growth

    result = measure_growth(known.turns, known.processes, tell, largest_tokens=known.largest_tokens)
    draw_growth(result, known.output / "growth.png")
    print(f"measured on {json.dumps(result['machine'])}")
    print(f"{known.output}/growth.png, and its numbers beside it")


def tell(text: str) -> None:
    """How far it is, beside the result."""
    print(text, file=sys.stderr, flush=True)


def profile(words: list[str]) -> None:
    """Milliseconds a step by stage, and what bounds it."""
    from vit.settings import resolve_run

    parser = run_parser("profile", "Milliseconds a step of every stage of a run, what bounds it, and a chrome trace.")
    parser.add_argument("--steps", type=int, default=20, help="timed; default: %(default)s")
    parser.add_argument("--output", type=Path, default=Path("runs/profile"), help="folder; default: %(default)s")
    known, overrides = parser.parse_known_args(words)
    check_folder("--output", known.output)
    check_positive("--steps", known.steps)
    config = resolve_run(known.config, overrides).config
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler says when it starts and that there is no GPU
    started = time.perf_counter()
    from vit.experiments.profile import profile_run

    imports = time.perf_counter() - started
    print(profile_run(config, known.output, known.steps, imports).text())
