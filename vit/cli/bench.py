"""The command `vit bench`: words in, one measurement called, its numbers out as JSON. Knows no tensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from vit.cli.parsing import Parser, check_file, check_folder
from vit.cli.pipeline import growth, pipeline, tell
from vit.config import check_positive, nearest

_USAGE = """\
vit bench WHAT …

  forward     forward passes against other libraries' models:   vit bench forward [--models Ti S] [--compile]
  step        training steps against other libraries' models:   vit bench step [--models Ti S] [--compile]
  data        source to augmented batch, against two loaders:   vit bench data --config FILE [--workers 0 1 2]
  growth      time and memory by tokens, batch and depth:       vit bench growth [--output DIR]
  epoch       whole training epochs against the usual loop:     vit bench epoch --config FILE [--workers 0 1 2]
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
    from vit.runs import write_json

    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output, result)


def _parser(what: str, description: str) -> Parser:
    parser = Parser(prog=f"vit bench {what}", description=description)
    parser.add_argument("--turns", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    return parser


def _models(kind: Literal["forward", "step"], words: list[str]) -> None:
    what = {"forward": "Forward passes", "step": "Training steps (forward, backward, fused AdamW)"}[kind]
    parser = Parser(
        prog=f"vit bench {kind}",
        description=f"{what} of Vision Transformers against timm's, torchvision's, transformers' and vit-pytorch's, in "
        "turns, with the same weights. A finished cell is stored; a stopped table goes on where it was.",
    )
    named = "Ti, S, B, L (patches of 16, 224 pixels), CIFAR; default: all but L"
    parser.add_argument("--models", nargs="+", metavar="NAME", help=named)
    parser.add_argument("--batch_sizes", nargs="+", type=int, help="default: each model's own")
    parser.add_argument("--dtypes", nargs="+", metavar="TYPE", help="fp32, bf16; default: both")
    parser.add_argument("--peers", nargs="+", metavar="LIBRARY", help="default: all that are installed")
    parser.add_argument("--turns", type=int, help="default: 7")
    parser.add_argument(
        "--compile", action="store_true", default=None, help="all models by torch.compile, on CUDA with its graphs"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cpu")
    parser.add_argument("--output", type=Path, default=Path("runs/model_speed"), help="folder; default: %(default)s")
    known = vars(parser.parse_args(words))
    output = known.pop("output")
    check_folder("--output", output)
    from vit.experiments.model_speed import Table, measure_table

    given = {name: value for name, value in known.items() if value is not None}
    measure_table(Table(kind=kind, **given), output, partial(print, flush=True))
    print(f"the whole table: {output}/table.md")


def _attention(words: list[str]) -> None:
    parser = _parser("attention", "Every backend by type, tokens and mask; with --models, auto against sdpa in models.")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], help="default: fp32 bf16")
    parser.add_argument("--tokens", nargs="+", type=int, help="of the backends; default: 65 197 577 1025")
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[8], help="default: 8")
    parser.add_argument("--heads", nargs="+", type=int, help="of the backends; default: 12")
    parser.add_argument(
        "--models", nargs="*", help="Ti, S, B (patches of 16, 224 pixels) or names of vit.list_models(); none: Ti S B"
    )
    known = parser.parse_args(words)
    check_file("--output", known.output)
    check_positive("--turns", known.turns)
    for option, numbers in (("--tokens", known.tokens), ("--heads", known.heads)):
        for number in numbers or ():
            check_positive(option, number)
        if numbers and known.models is not None:
            raise ValueError(f"{option}: it has no effect with --models, which decide how many")
    from vit.experiments.attention_speed import CONVENTIONS, HEADS, MODELS, TOKENS, bench_attention, bench_models
    from vit.experiments.turns import machine

    common = known.batch_sizes, known.turns, tell
    if known.models is None:
        tokens, heads = known.tokens or TOKENS, known.heads or (HEADS,)
        rows = bench_attention(known.device, known.dtypes, tokens, *common, heads=heads)
    else:
        rows = bench_models(known.device, known.dtypes, known.models or list(MODELS), *common)
    result = {"rows": rows, "turns": known.turns, "machine": machine(known.device), "conventions": CONVENTIONS}
    _finish(result, known.output)


def _layers(words: list[str]) -> None:
    what = "Self-attention, recurrent, convolution and restricted self-attention: time against the number of tokens."
    parser = _parser("layers", what)
    parser.add_argument("--figure", type=Path, help="draw the times into this PNG, their numbers beside it")
    known = parser.parse_args(words)
    for option in ("output", "figure"):
        check_file(f"--{option}", getattr(known, option))
    from vit.experiments.layer_cost import draw_layers, measure_layers

    result = measure_layers(known.turns)
    _finish(result, known.output)
    if known.figure:
        draw_layers(result, known.figure)


def _analysis(words: list[str]) -> None:
    parser = _parser("analysis", "Attention statistics streamed against those of the map of all weights: time, memory.")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16", "fp16"))
    parser.add_argument("--tokens", nargs="+", type=int, default=[196, 1024, 4096], help="of square grids; 4 or more")
    parser.add_argument("--num_heads", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=1)
    known = parser.parse_args(words)
    check_file("--output", known.output)
    for option in ("turns", "num_heads", "batch_size"):
        check_positive(f"--{option}", getattr(known, option))
    for number in known.tokens:
        check_positive("--tokens", number)
    from vit.experiments.statistics_cost import bench_statistics

    settings = {name: value for name, value in vars(known).items() if name != "output"}
    _finish(bench_statistics(**settings, tell=tell), known.output)


def _distance(words: list[str]) -> None:
    parser = _parser("distance", "Attention distance of a ViT-B/16: streamed, against keeping its maps: time, memory.")
    parser.set_defaults(turns=1)
    parser.add_argument("--sizes", nargs="+", type=int, default=[224, 512, 1024], help="sides of the image, pixels")
    known = parser.parse_args(words)
    check_file("--output", known.output)
    from vit.experiments.distance_cost import bench_distance

    _finish(bench_distance(known.sizes, turns=known.turns), known.output)


def _capture(words: list[str]) -> None:
    parser = Parser(
        prog="vit bench capture", description="Outputs rebuilt from captured vectors: how far they are off."
    )
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    known = parser.parse_args(words)
    check_file("--output", known.output)
    from vit.experiments.capture_proof import prove_capture, table

    rows = prove_capture()
    print(table(rows))
    if known.output:
        _write(rows, known.output)


BENCHES: dict[str, Callable[[list[str]], None]] = {
    "forward": partial(_models, "forward"),
    "step": partial(_models, "step"),
    "data": partial(pipeline, "data"),
    "epoch": partial(pipeline, "epoch"),
    "growth": growth,
    "attention": _attention,
    "analysis": _analysis,
    "capture": _capture,
    "distance": _distance,
    "layers": _layers,
}
