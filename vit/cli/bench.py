"""The command `vit bench`: words in, one measurement called, its numbers out as JSON. Knows no tensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vit.cli.parsing import Parser, check_folder, run_parser
from vit.config import check_positive, nearest

_USAGE = """\
vit bench WHAT …

  train       this package's training against the usual loop:   vit bench train --config FILE
  attention   the backends, and auto against sdpa in models:    vit bench attention [--models …]
  analysis    statistics of attention against its maps:         vit bench analysis [--tokens 196 1024 4096]
  distance    attention distance of a ViT against its maps:     vit bench distance [--sizes 224 512 1024]
  capture     architectures whose attention can be read:        vit bench capture
  layers      kinds of layers as sequences grow:                vit bench layers [--figure PNG]

`vit bench WHAT --help` says more."""


def measure(words: list[str]) -> None:
    """One measurement. ValueError: there is no such."""
    if not words or words[0] in ("-h", "--help"):
        print(_USAGE)
        return
    what = words[0]
    if what not in BENCHES:
        raise ValueError(f"bench: there is no measurement {what!r}; {nearest(what, BENCHES)}")
    BENCHES[what](words[1:])


def _finish(result: Any, output: Path | None) -> None:
    print(json.dumps(result, indent=2))
    if output:
        _write(result, output)


def _write(result: Any, output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=2) + "\n")


def _parser(what: str, description: str) -> Parser:
    parser = Parser(prog=f"vit bench {what}", description=description)
    parser.add_argument("--turns", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    return parser


def _train(words: list[str]) -> None:
    from vit.config import ClassificationRun
    from vit.settings import resolve_run

    parser = run_parser("bench train", "This training loop against PIL transforms around timm's model, in turns.")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps of each side in a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--loader_workers", type=int, default=2, help="of the usual loop's DataLoader")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    known, overrides = parser.parse_known_args(words)
    check_folder("--output", known.output and known.output.parent)
    config = resolve_run(known.config, overrides).config
    if not isinstance(config, ClassificationRun):
        raise ValueError(f"--config: {str(known.config)!r} is not valid: `bench train` times the training of images")
    from vit.experiments.bench import bench_training

    _finish(bench_training(config, known.steps, known.turns, known.loader_workers), known.output)


def _attention(words: list[str]) -> None:
    parser = _parser("attention", "Every backend by type, tokens and mask; with --models, auto against sdpa in models.")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], help="default: fp32 bf16")
    parser.add_argument("--tokens", nargs="+", type=int, default=[65, 197, 577, 1025])
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[8])
    parser.add_argument("--models", nargs="*", help="names of models; none: Ti, S and B with patches of 16")
    known = parser.parse_args(words)
    check_folder("--output", known.output and known.output.parent)
    check_positive("--turns", known.turns)
    for number in known.tokens:
        check_positive("--tokens", number)
    from vit.experiments.attention_speed import MODELS, bench_attention, bench_models

    if known.models is None:
        sizes = [(size, known.tokens) for size in known.batch_sizes]
        rows = [
            {"batch_size": size, **row}
            for size, tokens in sizes
            for row in bench_attention(known.device, known.dtypes, tokens, size, known.turns)
        ]
    else:
        rows = bench_models(known.device, known.dtypes, known.models or MODELS, known.batch_sizes, known.turns)
    _finish(rows, known.output)


def _layers(words: list[str]) -> None:
    what = "Self-attention, recurrent, convolution and restricted self-attention: time against the number of tokens."
    parser = _parser("layers", what)
    parser.add_argument("--figure", type=Path, help="draw the times into this PNG, their numbers beside it")
    known = parser.parse_args(words)
    for option in ("output", "figure"):
        place = getattr(known, option)
        check_folder(f"--{option}", place and place.parent)
    from vit.experiments.layer_cost import draw_layers, measure_layers

    result = measure_layers(known.turns)
    _finish(result, known.output)
    if known.figure:
        draw_layers(result, known.figure)


def _analysis(words: list[str]) -> None:
    parser = _parser("analysis", "Attention statistics streamed against those of the map of all weights: time, memory.")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16", "fp16"))
    parser.add_argument("--tokens", nargs="+", type=int, default=[196, 1024, 4096], help="squares, as of a grid")
    parser.add_argument("--num_heads", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=1)
    known = parser.parse_args(words)
    check_folder("--output", known.output and known.output.parent)
    for option in ("turns", "num_heads", "batch_size"):
        check_positive(f"--{option}", getattr(known, option))
    for number in known.tokens:
        check_positive("--tokens", number)
    from vit.experiments.statistics_cost import bench_statistics

    settings = {name: value for name, value in vars(known).items() if name != "output"}
    _finish(bench_statistics(**settings), known.output)


def _distance(words: list[str]) -> None:
    parser = _parser("distance", "Attention distance of a ViT-B/16: streamed, against keeping its maps: time, memory.")
    parser.set_defaults(turns=1)
    parser.add_argument("--sizes", nargs="+", type=int, default=[224, 512, 1024], help="sides of the image, pixels")
    known = parser.parse_args(words)
    check_folder("--output", known.output and known.output.parent)
    from vit.experiments.distance_cost import bench_distance

    _finish(bench_distance(known.sizes, turns=known.turns), known.output)


def _capture(words: list[str]) -> None:
    parser = Parser(
        prog="vit bench capture", description="Outputs rebuilt from captured vectors: how far they are off."
    )
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    known = parser.parse_args(words)
    check_folder("--output", known.output and known.output.parent)
    from vit.experiments.capture_proof import prove_capture, table

    rows = prove_capture()
    print(table(rows))
    if known.output:
        _write(rows, known.output)


BENCHES: dict[str, Callable[[list[str]], None]] = {
    "train": _train,
    "attention": _attention,
    "analysis": _analysis,
    "capture": _capture,
    "distance": _distance,
    "layers": _layers,
}
