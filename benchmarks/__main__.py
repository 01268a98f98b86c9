"""`python -m benchmarks`: run one benchmark and print its numbers or write them as JSON.

Errors and exit codes are those of the command `vit`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from vit.cli import run_command
from vit.cli.parsing import Parser, add_at_once_option, check_file, check_folder, run_parser
from vit.config import check, check_positive, nearest
from vit.tasks.classification import require_classification

_USAGE = """\
python -m benchmarks NAME …

  forward     forward passes against other libraries' models       [--models Ti S] [--compile]
  step        training steps against other libraries' models       [--models Ti S] [--compile]
  eight_bits  int8 against float, onnxruntime and torchao          [--models Ti S] [--batch_sizes 1 8]
  deployed    accuracy in bfloat16, eight bits and as ONNX         MODEL [--data DATA] [--sensitivity 1000]
  data        source to augmented batch, against two loaders       --config FILE [--workers 0 1 2]
  epoch       whole training epochs against the reference loop     --config FILE [--workers 0 1 2]
  attention   the backends, and auto against sdpa in models        [--models …]
  analysis    statistics of attention against its maps             [--tokens 196 1024 4096]
  distance    attention distance of a ViT against its maps         [--sizes 224 512 1024]
  ablation    what each ingredient of a recipe brings              FILE --minutes M
  budgeted    trainings of a list, in calls of limited time         FILE --minutes M [--rehearse]
  speedrun    disk to test accuracy: whole trainings over seeds    --config NAME [--seeds 0 1 2 3 4]
  transfer    frozen features against a loop of timm, scikit-learn  --source DIR --data DIR
  capture     architectures whose attention can be read
  memory      peaks of whole commands, with their bounds           [--only NAME …]
  growth      time and memory by tokens, batch and depth           [--output DIR]
  layers      kinds of layers as sequences grow                    [--figure PNG]

`python -m benchmarks NAME --help` lists all options."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark and return the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(_USAGE)
        return 0
    return run_command(_run, argv)


def _run(argv: list[str]) -> None:
    name, *rest = argv
    if name not in BENCHMARKS:
        raise ValueError(f"there is no benchmark {name!r}; {nearest(name, BENCHMARKS)}")
    BENCHMARKS[name](rest)


def progress(text: str) -> None:
    """Print a line of progress to standard error, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def _parser(name: str, description: str, turns: int | None = 5) -> Parser:
    parser = Parser(prog=f"python -m benchmarks {name}", description=description)
    if turns is not None:
        parser.add_argument("--turns", type=int, default=turns, help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    return parser


def _write(result: Any, output: Path | None, *, show: bool = False) -> None:
    """Write the result as JSON, if there is an `output`; `show` prints it too."""
    from vit.runs import write_json

    if show:
        print(json.dumps(result, indent=2))
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json(output, result)


def _models(kind: Literal["forward", "step"], argv: list[str]) -> None:
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


def _eight_bits(argv: list[str]) -> None:
    what = "Vision Transformers of eight bits against float ones, onnxruntime's and timm's under torchao, in turns."
    parser = _parser("eight_bits", what, turns=7)
    parser.add_argument("--models", nargs="+", default=["Ti", "S", "B"], metavar="NAME", help="default: Ti S B")
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[1, 8], help="default: 1 8")
    args = parser.parse_args(argv)
    check_file("--output", args.output)
    from benchmarks.eight_bits import bench_eight_bits, markdown

    result = bench_eight_bits(args.models, args.batch_sizes, turns=args.turns, progress=progress)
    print(markdown(result))
    _write(result, args.output)


def _deployed(argv: list[str]) -> None:
    from vit.cli.sources import DATA, MODEL, add_model_options, all_images, model_options, resolve_data, split_settings

    settings, rest = split_settings(argv)
    what = "Accuracy of a trained model in bfloat16, in eight bits and as ONNX files, against the model in float32."
    parser = _parser("deployed", what, turns=None)
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
    _write(result, args.output)


def _pipeline(kind: Literal["data", "epoch"], argv: list[str]) -> None:
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
    config = require_classification(resolve_run(args.config, overrides).config, "--config", str(args.config))
    from benchmarks.pipeline_speed import PipelineSpec, bench_data, bench_epoch
    from benchmarks.pipeline_table import markdown

    spec = PipelineSpec(workers=args.workers, peers=args.peers, turns=args.turns)
    result = {"data": bench_data, "epoch": bench_epoch}[kind](config, spec, progress)
    print(markdown(result))
    _write(result, args.output)
    if args.output:
        args.output.with_suffix(".md").write_text(markdown(result))


def _attention(argv: list[str]) -> None:
    parser = _parser("attention", "Every backend by type, tokens and mask; with --models, auto against sdpa in models.")
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
    _write(result, args.output, show=True)


def _analysis(argv: list[str]) -> None:
    parser = _parser("analysis", "Attention statistics, streamed and from the map of all weights: time, memory.")
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
    _write(result, args.output, show=True)


def _add_backend(parser: Parser) -> None:
    help_ = "of the statistics (default: %(default)s)"
    parser.add_argument("--backend", default="auto", choices=("auto", "streamed", "compiled", "triton"), help=help_)


def _distance(argv: list[str]) -> None:
    what = "Attention distance of a ViT-B/16, streamed and from its maps: time, memory."
    parser = _parser("distance", what, turns=1)
    parser.add_argument("--sizes", nargs="+", type=int, default=[224, 512, 1024], help="sides of the images in pixels")
    _add_backend(parser)
    args = parser.parse_args(argv)
    check_file("--output", args.output)
    from benchmarks.distance_cost import bench_distance

    result = bench_distance(args.sizes, turns=args.turns, backend=args.backend)
    _write(result, args.output, show=True)


def _transfer(argv: list[str]) -> None:
    what = "vit eval --transfer against the usual loop with timm and scikit-learn: whole processes, time and memory."
    parser = _parser("transfer", what, turns=1)
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
    from benchmarks.transfer_cost import bench_transfer

    sizes = args.train_images, args.images, args.image_size
    _write(bench_transfer(args.source, args.timm_name, args.data, *sizes, args.turns), args.output, show=True)


def _speedrun(argv: list[str]) -> None:
    what = (
        "Whole trainings, from the start of the process to the accuracy on the test set, where the time went, and a "
        "test over seeds. Options of `vit train` are passed on. A machine with other load is refused. On Linux."
    )
    parser = Parser(prog="python -m benchmarks speedrun", description=what)
    parser.add_argument("--config", required=True, help="a configuration: a file, or the name of a packaged one")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="default: 0 1 2 3 4")
    parser.add_argument("--bar", type=float, help="the accuracy to be above at p < 0.01, as 0.8")
    parser.add_argument("--folder", type=Path, default=Path("runs/speedrun"), help="of the runs; default: %(default)s")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    args, overrides = parser.parse_known_args(argv)
    check_file("--output", args.output)
    check_folder("--folder", args.folder)
    if args.bar is not None and not 0 < args.bar < 1:
        raise ValueError(f"--bar: {args.bar:g} is not valid: it is a fraction, as 0.8")
    if args.bar is not None and len(args.seeds) < 2:
        raise ValueError("--bar: the spread over seeds needs at least two --seeds")
    for option in ("--seed", "--output_dir", "--resume"):
        if option in overrides:
            raise ValueError(f"{option}: it is not valid here: --seeds and --folder say it for every run")
    from benchmarks.speedrun import CONVENTIONS, above, speedrun

    result = speedrun(args.config, overrides, args.seeds, args.folder / Path(args.config).stem, progress)
    if args.bar is not None:
        result["above"] = above(result["runs"], args.bar)
    _write(result | {"conventions": CONVENTIONS}, args.output, show=True)


def _ablation(argv: list[str]) -> None:
    what = (
        "What each ingredient of a recipe brings: the plain recipe with it, the whole one without it, at equal time of "
        "training. The same command continues it, on another machine too, where it needs the file of --output alone."
    )
    parser = Parser(prog="python -m benchmarks ablation", description=what)
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML: config, settings, ingredients")
    parser.add_argument("--minutes", type=float, required=True, help="of training for each run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default: 0 1 2")
    add_at_once_option(parser)
    parser.add_argument("--folder", type=Path, default=Path("runs/ablation"), help="of the runs; default: %(default)s")
    written = "the result as JSON, written after every run; one that is there is continued; default: FOLDER/NAME.json"
    parser.add_argument("--output", type=Path, help=written)
    args = parser.parse_args(argv)
    folder = args.folder / args.file.stem
    file = args.output or folder.with_name(f"{folder.name}.json")
    check_file("--output", file)
    check_folder("--folder", args.folder)
    check_positive("--minutes", args.minutes)
    from benchmarks.ablation import Ablation, ablate, table

    ablation = Ablation.read(args.file)
    file.parent.mkdir(parents=True, exist_ok=True)
    print(table(ablate(ablation, args.minutes, args.seeds, folder, file, progress, args.at_once)))


def _budgeted(argv: list[str]) -> None:
    what = (
        "Trainings of a list, each for as many epochs as its minutes hold. A call ends after --minutes; the same "
        "command continues it."
    )
    parser = Parser(prog="python -m benchmarks budgeted", description=what)
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML: settings, rehearsal, runs")
    parser.add_argument("--minutes", type=float, required=True, help="of this call")
    parser.add_argument("--rehearse", action="store_true", help="with the file's rehearsal settings, a second each")
    parser.add_argument("--folder", type=Path, default=Path("runs/budgeted"), help="of the runs; default: %(default)s")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    args = parser.parse_args(argv)
    check_file("--output", args.output)
    check_folder("--folder", args.folder)
    check_positive("--minutes", args.minutes)
    from benchmarks.budgeted import read_list, table, train_list

    runs = read_list(args.file, rehearse=args.rehearse)
    place = args.folder / (f"{args.file.stem}_rehearsal" if args.rehearse else args.file.stem)
    result = train_list(runs, place, args.minutes, progress)
    print(table(result))
    if result["unfinished"]:
        print(f"not finished: {', '.join(result['unfinished'])}; the same command continues")
    _write(result, args.output)


def _capture(argv: list[str]) -> None:
    what = "Difference of outputs rebuilt from captured vectors, by architecture."
    args = _parser("capture", what, turns=None).parse_args(argv)
    check_file("--output", args.output)
    from benchmarks.capture_proof import prove_capture, table

    rows = prove_capture()
    print(table(rows))
    _write(rows, args.output)


def _memory(argv: list[str]) -> None:
    what = (
        "Peak memory of whole commands on what is large, with their bounds, and of commands with freed memory kept and "
        "returned. On Linux."
    )
    parser = _parser("memory", what, turns=2)
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
    _write(result, args.output, show=True)


def _growth(argv: list[str]) -> None:
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


def _layers(argv: list[str]) -> None:
    what = "Self-attention, recurrent, convolution and restricted self-attention: time against the number of tokens."
    parser = _parser("layers", what)
    parser.add_argument("--figure", type=Path, help="draw the times into this PNG, with the numbers beside it")
    args = parser.parse_args(argv)
    for option in ("output", "figure"):
        check_file(f"--{option}", getattr(args, option))
    from benchmarks.layer_cost import draw_layers, measure_layers

    result = measure_layers(args.turns)
    _write(result, args.output, show=True)
    if args.figure:
        draw_layers(result, args.figure)


BENCHMARKS: dict[str, Callable[[list[str]], None]] = {
    "forward": partial(_models, "forward"),
    "step": partial(_models, "step"),
    "eight_bits": _eight_bits,
    "deployed": _deployed,
    "data": partial(_pipeline, "data"),
    "epoch": partial(_pipeline, "epoch"),
    "attention": _attention,
    "analysis": _analysis,
    "distance": _distance,
    "ablation": _ablation,
    "budgeted": _budgeted,
    "speedrun": _speedrun,
    "transfer": _transfer,
    "capture": _capture,
    "memory": _memory,
    "growth": _growth,
    "layers": _layers,
}

if __name__ == "__main__":
    sys.exit(main())
